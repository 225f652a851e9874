"""Run SGLang's real layer functions with our plug-in in them, kernels interpreted, and print one JSON line per job.

Started by test_plugin.py in a process of its own, with TRITON_INTERPRET, the mode and the counters' file in the environment.
SGLang's own kernels do not run without a GPU: where a call is left to SGLang, reaching them is what shows it.
"""

import json
import os
import sys
from dataclasses import replace
from functools import cache, partial
from typing import ClassVar
from unittest import mock

import torch
from sglang.srt import plugins
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe

from perfgate_moe.engines import plugin, sglang_peer
from perfgate_moe.engines import sglang_layer as plugin_data
from perfgate_moe.engines.counters import Counters
from perfgate_moe.exam import trial
from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.reference import oracle
from perfgate_moe.layer.tiles import SMALL

CASE = LayerCase(E=3, k=2, H=24, I=20, M=3, dtype="float16")
CASES = {
    "swiglu": CASE,
    "silu": replace(CASE, activation="silu", bias="off", scaling=2.5, mask="ep"),
    "chunked": replace(CASE, activation="swiglu-chunked"),
    "fp8": replace(CASE, H=136, I=72, quant="fp8"),
}
OPTIONS = {
    "quantised": {"use_int8_w8a8": True},
    "scales": {"w1_scale": torch.ones(3)},
    "no_combine": {"no_combine": True},
    "gelu": {"activation": "gelu"},
    "ungated": {"is_gated": False},
    "late-clamp": {"gemm1_alpha": None},
    "deepseek-clamp": {"swiglu_limit": 10.0},
    "bias-layout": {"b2": torch.zeros(3, 25)},
    "input-weights": {"apply_router_weight_on_input": True},
    "router-dtype": {"topk_ids": torch.zeros(3, 2, dtype=torch.int64)},
    "tensor-fp8": {"use_fp8_w8a8": True, "block_shape": None},
    "fp8-dtype": {"use_fp8_w8a8": True, "block_shape": [128, 128]},
    "hooks": {"hooks": object()},
}


def arguments(problem, *, inplace):
    """A problem as SGLang's layer takes it; a gpt-oss server holds biases in float32."""
    activation = problem.activation
    biases = {"b1": problem.gate_up_bias, "b2": problem.down_bias}
    return {
        "hidden_states": problem.hidden.clone(),
        "w1": problem.gate_up,
        "w2": problem.down,
        "topk_weights": problem.topk_weights,
        "topk_ids": problem.topk_ids,
        **{name: None if bias is None else bias.float() for name, bias in biases.items()},
        "inplace": inplace,
        "routed_scaling_factor": problem.routed_scaling,
        "gemm1_alpha": activation.alpha if activation.limit is not None else None,
        "gemm1_limit": activation.limit,
        "gate_up_interleaved": activation.interleaved,
        **quantisation(problem),
    }


def quantisation(problem):
    """How SGLang is told of 8-bit weights."""
    if problem.scales is None:
        return {}
    scales = {"w1_scale": problem.scales.gate_up, "w2_scale": problem.scales.down}
    return {"use_fp8_w8a8": True, "block_shape": [128, 128], **scales}


def answer(name, *, inplace):
    """Distances of the hooked layer's answer from the oracle, as violations, and whether the input was written as asked."""
    problem = build(CASES[name])
    call = arguments(problem, inplace=inplace)
    result = fused_moe.fused_experts_impl(**call)
    found = list(TOLERANCES[CASES[name].precision].violations(measure(result, oracle(problem))))
    if (result.data_ptr() == call["hidden_states"].data_ptr()) is not inplace:
        found.append("answer in the wrong buffer")
    return found


@cache
def serve_on_cpu():
    """Once a process, as an operator takes one implementation."""
    trial.serve_on_cpu()


class LaunchedError(Exception):
    """The second product was about to be launched: all that SGLang does in Python before it was done."""


def launch_peer(is_sum_fused):
    """What SGLang's layer hands to its launches when it runs as a peer; nothing is launched, which needs a GPU."""
    launches = []

    def catch(*args, **kwargs):
        launches.append([list(args[3].shape), bool(kwargs.get("fuse_sum_all_reduce"))])
        if len(launches) > 1:
            raise LaunchedError

    def align(ids, *_):
        return ids.flatten(), ids.flatten(), ids.flatten()

    serve_on_cpu()
    (swap,) = KeptSwap.kept
    problem = build(replace(CASE, k=3))
    with mock.patch.multiple(fused_moe, invoke_fused_moe_kernel=catch, moe_align_block_size=align):
        try:
            swap._leave(partial(sglang_peer.fused_experts, problem, is_sum_fused=is_sum_fused, plan=SMALL))
        except LaunchedError:
            return launches
    return "not launched"


class KeptSwap(plugin.Swap):
    """The plug-in's hooks, within reach: another mode costs no other process, which would load SGLang again."""

    kept: ClassVar[list[plugin.Swap]] = []

    def __init__(self, **fields):
        super().__init__(**fields)
        self.kept.append(self)


def answer_in(mode, kind, name):
    """The answer in another mode than the server's, and what computed it."""
    (swap,) = KeptSwap.kept
    own, swap.counters = swap.counters, Counters(mode=mode, versions={})
    try:
        problems = answer(name, inplace=kind == "inplace")
        return {"problems": problems, "computed": dict(swap.counters.computed)}
    finally:
        swap.counters = own


def leave(name):
    """How SGLang's own layer, which needs a GPU, ends here for a call that ours does not cover."""
    call = arguments(build(CASE), inplace=False) | OPTIONS[name]
    function = fused_moe.fused_experts_impl
    if name == "hooks":
        rest = dict.fromkeys(("sorted_token_ids", "expert_ids", "num_tokens_post_padded", "config", "down_config"))
        flags = dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant"), False)
        flags |= dict.fromkeys(("apply_router_weight_on_input", "no_combine", "filter_expert", "down_moe_use_tma"), False)
        scales = dict.fromkeys(("w1_scale", "w2_scale", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape"))
        call = {"activation": "silu", "is_gated": True} | rest | flags | scales | call
        function = fused_moe._fused_moe_kernel_sequence
    try:
        function(**call)
    except (AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__
    return "answered"


def refusal():
    """What the plug-in says of a version of SGLang whose layer has another parameter than any that was read."""
    known = plugin.TAKEN[plugin_data.SEQUENCE]
    plugin.TAKEN[plugin_data.SEQUENCE] = known - {"hooks"}
    try:
        plugin.register()
    except SystemExit as refused:
        return str(refused.code)
    finally:
        plugin.TAKEN[plugin_data.SEQUENCE] = known
    return "accepted"


def load_with(mode):
    """How SGLang's loader, which swallows exceptions, ends with this mode."""
    asked, os.environ[plugin.VARIABLE] = os.environ[plugin.VARIABLE], mode
    try:
        plugins.load_plugins()
    except SystemExit as refused:
        return str(refused.code)
    finally:
        os.environ[plugin.VARIABLE] = asked
        plugins._plugins_loaded = False
    return "serving"


def main():
    print(json.dumps({"job": "refusal", "found": refusal()}), flush=True)
    print(json.dumps({"job": "unknown mode", "found": load_with("fast")}), flush=True)
    plugin.Swap = KeptSwap
    plugins.load_plugins()
    for job in sys.stdin.read().split():
        mode, _, task = job.rpartition("/")
        kind, _, name = task.partition(":")
        if mode:
            found = answer_in(mode, kind, name)
        elif kind == "peer":
            found = launch_peer(name == "fused-sum")
        elif kind == "state":
            found = [hasattr(getattr(fused_moe, target), "__wrapped__") for target in plugin.TAKEN]
        elif kind == "leave":
            found = leave(name)
        else:
            found = answer(name, inplace=kind == "inplace")
        print(json.dumps({"job": job, "found": found}), flush=True)


if __name__ == "__main__":
    main()
