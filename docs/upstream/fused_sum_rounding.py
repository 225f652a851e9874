"""SGLang's fused MoE sum rounds to 16 bits after each expert. Needs a GPU, and SGLang 0.5.16 or a version like it.

Prints the error of both sums against float32, |d| / |reference|, on the same inputs.
"""

from types import SimpleNamespace

import torch
from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.runtime_context import get_context

TOKENS, TOP_K, EXPERTS, HIDDEN, INNER = 127, 8, 128, 2048, 768


def main() -> None:
    """Print both errors in both dtypes."""
    fused_moe.get_tp_group, fused_moe.is_allocation_symmetric = lambda: None, lambda: False  # one process, no group
    torch.set_default_device("cuda")
    for dtype in (torch.bfloat16, torch.float16):
        hidden = torch.randn(TOKENS, HIDDEN, dtype=dtype)
        gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, dtype=dtype) * 3 / HIDDEN**0.5
        down = torch.randn(EXPERTS, HIDDEN, INNER, dtype=dtype) / INNER**0.5
        weights, ids = torch.rand(TOKENS, EXPERTS).softmax(dim=1).topk(TOP_K)
        weights, ids = weights / weights.sum(dim=1, keepdim=True), ids.int()
        reference = torch.zeros(TOKENS, HIDDEN)
        for token, slot in torch.cartesian_prod(torch.arange(TOKENS), torch.arange(TOP_K)).tolist():
            gate, up = (gate_up[ids[token, slot]].float() @ hidden[token].float()).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            reference[token] += weights[token, slot] * (down[ids[token, slot]].float() @ inner)
        config = MoeRunnerConfig(num_experts=EXPERTS, num_local_experts=EXPERTS, top_k=TOP_K, activation="silu", inplace=False)
        for is_fused in (False, True):
            others = {"enable_deterministic_inference": False, "enable_symm_mem": False}
            get_context().set_server_args(SimpleNamespace(enable_fused_moe_sum_all_reduce=is_fused, **others))
            answer = fused_moe.fused_experts(hidden, gate_up, down, StandardTopKOutput(weights, ids, weights), config)
            error = float((answer.float() - reference).norm() / reference.norm())
            print(f"{dtype}, {'fused' if is_fused else 'plain'} sum: {error:.2e}")


if __name__ == "__main__":
    main()
