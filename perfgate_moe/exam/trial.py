"""Try the plug-in in the installed SGLang without a GPU: SGLang's runner is handed a small layer, kernels are interpreted.

Run as a module by the Python that has SGLang, with TRIAL_VARIABLES of `switch.py` set. It ends with 0 where the runner calls
what the plug-in hooks and the answer is the reference's; SystemExit says what is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.plugins import load_plugins

from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.problem import MicroScales, Problem
from perfgate_moe.layer.reference import oracle

HOPPER = 9
"""The major number of its compute capability."""

PRODUCTS = "sglang.srt.layers.moe.fused_moe_triton.triton_kernels_moe"
PLAIN_OPTIONS = {"enable_deterministic_inference": False, "enable_torch_compile": False, "cuda_graph_config": None}
"""A server's options, as far as they are asked for while 4-bit weights are loaded."""

_LIBRARIES: list[Any] = []
"""An operator lives as long as the library that it is registered in."""

CASE = "E=3,k=2,H=24,I=20,M=3,dtype=float16"
LEFT_CASE = "E=3,k=2,H=96,I=64,M=3,dtype=float16,quant=mxfp4"
MICRO_CASE = "E=8,k=4,H=64,I=64,M=5,dtype=float16,quant=mxfp4"


class CaughtError(Exception):
    """SGLang's runner came to its products, which run on GPUs alone."""


def main() -> None:
    """Run a layer of each runner that is there, and say in a line what came of it."""
    load_plugins()
    judge_layer(CASE, run_layer)
    if find_spec("triton_kernels") is not None:
        judge_layer(MICRO_CASE, run_micro_layer)
        judge_left(LEFT_CASE)


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
    """A layer of 4-bit weights from its loading and its router's scores on, by SGLang's runner for them.

    SGLang's own kernels of it run on GPUs alone, and in bfloat16: what is left to SGLang ends in their complaint.
    """
    from sglang.srt.layers.moe import topk  # noqa: PLC0415 - what is tried

    scores = torch.full((problem.tokens, problem.experts), -torch.inf)
    scores.scatter_(1, problem.topk_ids.long(), problem.topk_weights.log())
    loaded = load_micro_layer(problem)
    return call_runner("triton_kernel", problem, loaded, topk.TritonKernelTopKOutput(*topk.routing(scores, problem.top_k)))


def judge_left(text: str) -> None:
    """SystemExit where a call that is left to SGLang hands its products other weights than SGLang's own, in any byte."""
    from sglang.srt.layers.quantization import mxfp4  # noqa: PLC0415 - what is tried

    problem = build(LayerCase.parse(text))
    ours = load_micro_layer(problem)
    with mock.patch.object(mxfp4, "_swizzle_mxfp4", mxfp4._swizzle_mxfp4.__wrapped__):  # noqa: SLF001 - hooked
        theirs = load_micro_layer(problem)
    if list(list_leaves(ours)) == list(list_leaves(theirs)):
        raise SystemExit("SGLang holds weights of its own beside the plug-in's")
    if list(list_leaves(catch_products(problem, ours))) != list(list_leaves(catch_products(problem, theirs))):
        raise SystemExit("a layer that is left to SGLang has other weights than SGLang's own")
    print(f"what the plug-in leaves to SGLang has SGLang's own weights in every byte, asked of {text}")


def catch_products(problem: Problem, weights: Any) -> list[Any]:
    """What SGLang's runner hands to its products when it has tables that did not wait, so that the call is left to it."""
    from sglang.srt.layers.moe import topk  # noqa: PLC0415 - what is tried

    def catch(**words: Any) -> None:
        raise CaughtError([words[name] for name in ("w1", "w1_pcg", "b1", "w2", "w2_pcg", "b2")])

    table, names = SimpleNamespace(n_expts_act=problem.top_k), topk.TritonKernelTopKOutput._fields
    tables = topk.TritonKernelTopKOutput(*(problem.top_k if name == "n_expts_act" else table for name in names))
    products = SimpleNamespace(triton_kernel_fused_experts=None, triton_kernel_fused_experts_with_bias=catch)
    try:
        with mock.patch.dict("sys.modules", {PRODUCTS: products}):
            call_runner("triton_kernel", problem, weights, tables)
    except CaughtError as caught:
        return list(*caught.args)
    raise SystemExit("SGLang's runner does not come to its products")


def load_micro_layer(problem: Problem) -> Any:
    """A layer's weights as SGLang's runner of 4-bit weights reads them, by SGLang's code for loading on Hopper."""
    from sglang.srt import runtime_context  # noqa: PLC0415 - what is tried
    from sglang.srt.layers.moe.moe_runner.triton_kernels import TritonKernelsQuantInfo  # noqa: PLC0415 - the same
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4MoEMethod  # noqa: PLC0415 - the same

    layout: Any = import_module("triton_kernels.tensor_details.layout")
    layout.cuda_capability_geq = lambda major, *_: major == HOPPER  # asks for a device
    method, layer = Mxfp4MoEMethod.__new__(Mxfp4MoEMethod), make_layer(problem)
    others = ("use_flashinfer", "use_marlin", "use_deep_gemm", "use_mega_moe")
    vars(method).update(dict.fromkeys(others, False), use_triton_kernels=True, _fi_kernel=None)
    with mock.patch.object(runtime_context, "get_server_args", return_value=SimpleNamespace(**PLAIN_OPTIONS)):
        method.process_weights_after_loading(layer)
    return TritonKernelsQuantInfo(
        w13_weight=method.w13_weight_triton_tensor, w2_weight=method.w2_weight_triton_tensor,
        w13_bias=layer.w13_weight_bias, w2_bias=layer.w2_weight_bias,
        w13_precision_config=method.w13_precision_config, w2_precision_config=method.w2_precision_config,
    )  # fmt: skip


def make_layer(problem: Problem) -> torch.nn.Module:
    """A layer with the parameters that SGLang's loader fills from a checkpoint."""
    if not isinstance(problem.scales, MicroScales) or problem.gate_up_bias is None or problem.down_bias is None:
        raise TypeError(f"{problem.quant}: not a layer of gpt-oss in 4 bits")
    parts = {
        "w13": (problem.gate_up, problem.scales.gate_up, problem.gate_up_bias),
        "w2": (problem.down, problem.scales.down, problem.down_bias),
    }
    layer = torch.nn.Module()
    for name, tensors in parts.items():
        for end, tensor in zip(("weight", "weight_scale", "weight_bias"), tensors, strict=True):
            layer.register_parameter(f"{name}_{end}", torch.nn.Parameter(tensor, requires_grad=False))
    return layer


def list_leaves(value: Any) -> Iterator[Any]:
    """What a record holds, and what the records in it hold: tensors with their bytes, other values as they are told."""
    if isinstance(value, list):
        for each in value:
            yield from list_leaves(each)
    elif isinstance(value, torch.Tensor):
        yield value.dtype, value.shape, value.stride(), value.flatten().tolist()
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for each in fields(value):
            yield from list_leaves(getattr(value, each.name))
    else:
        yield repr(value)


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
