"""SGLang's fused MoE sum writes outside its output for expert ids of -1. Needs a GPU, and SGLang 0.5.16 or a version like it.

The layer works in place here, so that what lies behind its output is known: rows of ones. None of them may change: exit code 1
if one does, so that `git bisect run` and a test take the script as it is.
"""

from types import SimpleNamespace

import torch
from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.runtime_context import get_context

TOKENS, TOP_K, EXPERTS, HIDDEN, INNER = 127, 4, 32, 2880, 720


def main() -> None:
    """Run the layer once and count the rows behind its output that changed."""
    fused_moe.get_tp_group, fused_moe.is_allocation_symmetric = lambda: None, lambda: False  # one process, no group
    others = {"enable_deterministic_inference": False, "enable_symm_mem": False}
    get_context().set_server_args(SimpleNamespace(enable_fused_moe_sum_all_reduce=True, **others))
    torch.set_default_device("cuda")
    memory = torch.ones(TOKENS * TOP_K, HIDDEN, dtype=torch.bfloat16)
    hidden = memory[:TOKENS].normal_()
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, dtype=torch.bfloat16) / HIDDEN**0.5
    down = torch.randn(EXPERTS, HIDDEN, INNER, dtype=torch.bfloat16) / INNER**0.5
    ids = torch.rand(TOKENS, 2 * EXPERTS).topk(TOP_K).indices.int()
    ids[ids >= EXPERTS] = -1  # experts of another rank
    weights = torch.full((TOKENS, TOP_K), 1 / TOP_K)
    config = MoeRunnerConfig(num_experts=2 * EXPERTS, num_local_experts=EXPERTS, top_k=TOP_K, activation="silu", inplace=True)
    fused_moe.fused_experts(hidden, gate_up, down, StandardTopKOutput(weights, ids, weights), config)
    behind = memory[TOKENS:]
    written = int((behind != 1).any(dim=1).sum())
    print(f"{written} of {len(behind)} rows behind the output were written, 0 may be")
    raise SystemExit(1 if written else 0)


if __name__ == "__main__":
    main()
