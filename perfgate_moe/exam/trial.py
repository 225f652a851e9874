"""Try the plug-in in the installed SGLang without a GPU: SGLang's runner is handed a small layer, kernels are interpreted.

Run as a module by the Python that has SGLang, with TRIAL_VARIABLES of `switch.py` set. It ends with 0 where the runner calls
what the plug-in hooks and the answer is the reference's; SystemExit says what is not so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.plugins import load_plugins

from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.reference import oracle

_LIBRARIES: list[Any] = []
"""An operator lives as long as the library that it is registered in."""

CASE = "E=3,k=2,H=24,I=20,M=3,dtype=float16"


def main() -> None:
    """Run one layer and say in a line what came of it."""
    load_plugins()
    case = LayerCase.parse(CASE)
    problem = build(case)
    found = measure(run_layer(replace(problem, hidden=problem.hidden.clone())), oracle(problem))
    if wrong := list(TOLERANCES[case.precision].violations(found)):
        raise SystemExit(f"the plug-in's layer is wrong: {'; '.join(map(str, wrong))}")
    print(f"SGLang's runner calls the plug-in, whose answer for {CASE} is the reference's")


def run_layer(problem: Any) -> Any:
    """The layer as a server asks for it: SGLang's runner for its Triton kernels, without expert parallelism."""
    from sglang.srt.layers.moe.moe_runner import MoeRunner, MoeRunnerConfig  # noqa: PLC0415 - what is tried
    from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo  # noqa: PLC0415 - the same
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput  # noqa: PLC0415 - the same
    from sglang.srt.layers.moe.topk import StandardTopKOutput  # noqa: PLC0415 - the same
    from sglang.srt.layers.moe.utils import MoeRunnerBackend  # noqa: PLC0415 - the same

    activation = problem.activation
    config = MoeRunnerConfig(
        num_experts=problem.experts, num_local_experts=problem.experts, top_k=problem.top_k, activation="silu", inplace=False,
        routed_scaling_factor=problem.routed_scaling, gemm1_alpha=activation.alpha, gemm1_clamp_limit=activation.limit,
        gate_up_interleaved=activation.interleaved,
    )  # fmt: skip
    weights = TritonMoeQuantInfo(
        w13_weight=problem.gate_up, w2_weight=problem.down, b13=problem.gate_up_bias, b2=problem.down_bias
    )
    serve_on_cpu()
    chosen = StandardTopKOutput(problem.topk_weights, problem.topk_ids, problem.topk_weights)
    handed = StandardDispatchOutput(hidden_states=problem.hidden, hidden_states_scale=None, topk_output=chosen)
    return MoeRunner(MoeRunnerBackend.TRITON, config).run(handed, weights).hidden_states


def serve_on_cpu() -> None:
    """SGLang registers the layer's operator for GPUs alone; tensors on a CPU go to the same function."""
    on_gpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)  # noqa: SLF001 - torch has no public name for it
    name = "outplace_fused_experts"
    operator = getattr(torch.ops.sglang, name).default
    _LIBRARIES.append(torch.library.Library("sglang", "IMPL"))
    _LIBRARIES[0].impl(name, lambda *args, **kwargs: operator.redispatch(on_gpu, *args, **kwargs), "CPU")


if __name__ == "__main__":
    main()
