"""Try the plug-in in the installed SGLang without a GPU: SGLang's runner is handed a small layer, kernels are interpreted.

Run as a module by the Python that has SGLang, with TRIAL_VARIABLES of `switch.py` set. It ends with 0 where the runner calls
what the plug-in hooks and the answer is the reference's; SystemExit says what is not so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from sglang.srt.plugins import load_plugins

from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.problem import MicroScales, Problem
from perfgate_moe.layer.reference import oracle

_LIBRARIES: list[Any] = []
"""An operator lives as long as the library that it is registered in."""

CASE = "E=3,k=2,H=24,I=20,M=3,dtype=float16"
MICRO_CASE = "E=8,k=4,H=64,I=64,M=5,dtype=float16,quant=mxfp4"


def main() -> None:
    """Run a layer of each runner that is there, and say in a line what came of it."""
    load_plugins()
    judge_layer(CASE, run_layer)
    if find_spec("triton_kernels") is not None:
        judge_layer(MICRO_CASE, run_micro_layer)


def judge_layer(text: str, run: Callable[[Problem], Any]) -> None:
    """SystemExit where a runner's answer is not the reference's."""
    case = LayerCase.parse(text)
    problem = build(case)
    found = measure(run(replace(problem, hidden=problem.hidden.clone())), oracle(problem))
    if wrong := list(TOLERANCES[case.precision].violations(found)):
        raise SystemExit(f"the plug-in's layer is wrong: {'; '.join(map(str, wrong))}")
    print(f"SGLang's runner calls the plug-in, whose answer for {text} is the reference's")


def run_layer(problem: Problem) -> Any:
    """The layer as a server asks for it: SGLang's runner for its Triton kernels, without expert parallelism."""
    from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo  # noqa: PLC0415 - what is tried
    from sglang.srt.layers.moe.topk import StandardTopKOutput  # noqa: PLC0415 - the same

    weights = TritonMoeQuantInfo(
        w13_weight=problem.gate_up, w2_weight=problem.down, b13=problem.gate_up_bias, b2=problem.down_bias
    )
    serve_on_cpu()
    chosen = StandardTopKOutput(problem.topk_weights, problem.topk_ids, problem.topk_weights)
    return call_runner("triton", problem, weights, chosen)


def run_micro_layer(problem: Problem) -> Any:
    """A layer of 4-bit weights from its router's scores on, by SGLang's runner for them.

    SGLang's own kernels of it run on GPUs alone, and in bfloat16: what is left to SGLang ends in their complaint.
    """
    from sglang.srt.layers.moe import topk  # noqa: PLC0415 - what is tried
    from sglang.srt.layers.moe.moe_runner.triton_kernels import TritonKernelsQuantInfo  # noqa: PLC0415 - the same
    from sglang.srt.layers.quantization import mxfp4  # noqa: PLC0415 - the same

    if not isinstance(problem.scales, MicroScales):
        raise TypeError(f"{problem.quant}: no 4-bit weights")
    layout: Any = import_module("triton_kernels.tensor_details.layout")
    layout.cuda_capability_geq = lambda *_, **__: False  # asks for a device
    scores = torch.full((problem.tokens, problem.experts), -torch.inf)
    scores.scatter_(1, problem.topk_ids.long(), problem.topk_weights.log())
    weights = ((problem.gate_up, problem.scales.gate_up), (problem.down, problem.scales.down))
    first, second = (mxfp4._swizzle_mxfp4(*weight, 8)[0] for weight in weights)  # noqa: SLF001 - hooked
    held = TritonKernelsQuantInfo(w13_weight=first, w2_weight=second, w13_bias=problem.gate_up_bias, w2_bias=problem.down_bias)
    return call_runner("triton_kernel", problem, held, topk.TritonKernelTopKOutput(*topk.routing(scores, problem.top_k)))


def call_runner(backend: str, problem: Problem, weights: Any, chosen: Any) -> Any:
    """The answer of one of SGLang's runners, by the name that a server's option has for it."""
    from sglang.srt.layers.moe.moe_runner import MoeRunner, MoeRunnerConfig  # noqa: PLC0415 - what is tried
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput  # noqa: PLC0415 - the same
    from sglang.srt.layers.moe.utils import MoeRunnerBackend  # noqa: PLC0415 - the same

    activation = problem.activation
    config = MoeRunnerConfig(
        num_experts=problem.experts, num_local_experts=problem.experts, top_k=problem.top_k, activation="silu", inplace=False,
        routed_scaling_factor=problem.routed_scaling, gemm1_alpha=activation.alpha, gemm1_clamp_limit=activation.limit,
        gate_up_interleaved=activation.interleaved,
    )  # fmt: skip
    handed = StandardDispatchOutput(hidden_states=problem.hidden, hidden_states_scale=None, topk_output=chosen)
    return MoeRunner(MoeRunnerBackend(backend), config).run(handed, weights).hidden_states


def serve_on_cpu() -> None:
    """SGLang registers the layer's operator for GPUs alone; tensors on a CPU go to the same function."""
    on_gpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)  # noqa: SLF001 - torch has no public name for it
    name = "outplace_fused_experts"
    operator = getattr(torch.ops.sglang, name).default
    _LIBRARIES.append(torch.library.Library("sglang", "IMPL"))
    _LIBRARIES[0].impl(name, lambda *args, **kwargs: operator.redispatch(on_gpu, *args, **kwargs), "CPU")


if __name__ == "__main__":
    main()
