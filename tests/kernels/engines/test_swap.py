"""Choosing a plan for a call from a server, without SGLang."""

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.engines.swap import ServerState, choose_plan, read_call
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer import tables
from perfgate_moe.layer.tables import Tuned
from perfgate_moe.layer.tiles import DECODE, FP8_SMALL, OWNER, SMALL, Variant

CASE = LayerCase(E=4, k=2, H=32, I=32, M=16, dtype="bfloat16")


@pytest.fixture
def on_a_tuned_device(monkeypatch):
    """A device whose table holds the case's shape, tuned at 8 and at 1000 tokens."""
    plans = {
        8: Tuned(plan=DECODE, gain=1.01),
        1000: Tuned(plan=replace(SMALL, variant=Variant.ATOMIC32), gain=0.99),
    }
    monkeypatch.setattr(tables, "stored", lambda _: {tables.shape_key(build(CASE)): plans})


def test_choose_plan__auto_takes_measured_plans_only():
    with pytest.raises(NotApplicableError, match="auto: no tuned plan for this device and shape"):
        choose_plan("auto", build(CASE))


@pytest.mark.usefixtures("on_a_tuned_device")
def test_choose_plan__auto_takes_the_nearest_tuned_plan_if_it_gained():
    assert choose_plan("auto", build(CASE)) is DECODE
    with pytest.raises(NotApplicableError, match="auto: not faster than SGLang when it was tuned"):
        choose_plan("auto", build(replace(CASE, M=900)))


@pytest.mark.usefixtures("on_a_tuned_device")
@pytest.mark.parametrize(("mode", "tokens"), [("slots", 16), ("slots", 1000), ("atomic32", 16), ("atomic32", 1000)])
def test_choose_plan__a_named_variant_is_what_runs(mode, tokens):
    assert choose_plan(mode, build(replace(CASE, M=tokens))).variant == mode


def test_choose_plan__owner_is_for_few_tokens():
    assert choose_plan("owner", build(CASE)) is OWNER
    with pytest.raises(NotApplicableError, match="owner: more than 64 tokens"):
        choose_plan("owner", build(replace(CASE, M=65)))


@pytest.mark.parametrize("mode", ["owner", "atomic32"])
def test_choose_plan__8_bit_weights_have_slots_only(mode):
    problem = build(replace(CASE, quant="fp8"))

    assert choose_plan("slots", problem).variant is Variant.SLOTS
    with pytest.raises(NotApplicableError, match=f"{mode}: quantised weights are computed by slots only"):
        choose_plan(mode, problem)


@pytest.mark.parametrize("gain", [1.05, 0.99])
def test_choose_plan__auto_takes_8_bit_weights_where_their_plan_gained(monkeypatch, gain):
    problem = build(replace(CASE, quant="fp8"))
    plans = {16: Tuned(plan=FP8_SMALL, gain=gain)}
    monkeypatch.setattr(tables, "stored", lambda _: {tables.shape_key(problem): plans})

    if gain > 1:
        assert choose_plan("auto", problem) is FP8_SMALL
    else:
        with pytest.raises(NotApplicableError, match="auto: not faster than SGLang when it was tuned"):
            choose_plan("auto", problem)


@pytest.mark.usefixtures("on_a_tuned_device")
def test_choose_plan__auto_does_not_take_16_bit_plans_for_8_bit_weights():
    with pytest.raises(NotApplicableError, match="auto: no tuned plan for this device and shape"):
        choose_plan("auto", build(replace(CASE, quant="fp8")))


def call(**changes):
    problem = build(CASE)
    plain = dict.fromkeys(("w1_scale", "w2_scale", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape", "swiglu_limit"))
    flags = dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant"), False)
    tensors = {
        "hidden_states": problem.hidden, "w1": problem.gate_up, "w2": problem.down, "b1": problem.gate_up_bias,
        "b2": problem.down_bias, "topk_weights": problem.topk_weights, "topk_ids": problem.topk_ids,
    }  # fmt: skip
    options = {
        "activation": "silu", "is_gated": True, "gemm1_alpha": 1.702, "gemm1_limit": 7.0, "gate_up_interleaved": True,
        "no_combine": False, "inplace": False, "apply_router_weight_on_input": False, "routed_scaling_factor": None,
    }  # fmt: skip
    return plain | flags | tensors | options | changes


INTERPRETED = ServerState(is_interpreted=True)


def test_read_call__gpt_oss_layer():
    problem = read_call(call(), INTERPRETED)

    assert problem.activation == build(CASE).activation
    assert problem.routed_scaling == 1.0
    assert problem.out.data_ptr() != problem.hidden.data_ptr()


@pytest.mark.parametrize(
    ("changes", "server", "reason"),
    [
        ({}, ServerState(), "device cpu"),
        ({"a1_q": build(CASE).hidden}, INTERPRETED, "activations rounded beforehand"),
        ({"fuse_swiglu_interleaved": True}, INTERPRETED, "rows of gate and up interleaved at load"),
        ({"defer_sum": True}, INTERPRETED, "the sum over experts left to the caller"),
        ({}, replace(INTERPRETED, is_deterministic=True), "deterministic inference"),
        ({}, replace(INTERPRETED, is_symmetric=True), "symmetric memory"),
        ({"hidden_states": build(replace(CASE, dtype="float32")).hidden}, INTERPRETED, "dtype float32"),
        ({"hidden_states": build(replace(CASE, dtype="float16")).hidden}, INTERPRETED, "weights of dtype bfloat16"),
        ({"hidden_states": build(replace(CASE, M=0)).hidden}, INTERPRETED, "no tokens"),
        ({"w1": build(replace(CASE, I=48)).gate_up}, INTERPRETED, "weight layout"),
        ({"topk_weights": build(CASE).topk_weights.T.contiguous().T}, INTERPRETED, "topk_weights not contiguous"),
    ],
)
def test_read_call__says_why_not(changes, server, reason):
    with pytest.raises(NotApplicableError, match=reason):
        read_call(call(**changes), server)


def fp8_call(**changes):
    problem = build(replace(CASE, quant="fp8"))
    scales = {"w1_scale": problem.scales.gate_up, "w2_scale": problem.scales.down}
    return call(w1=problem.gate_up, w2=problem.down, use_fp8_w8a8=True, block_shape=[128, 128], **scales | changes)


def test_read_call__8_bit_blocks():
    scales = read_call(fp8_call(), INTERPRETED).scales

    assert scales is not None
    assert scales.gate_up.shape == (4, 1, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block_shape": [64, 128]}, "quantised weights .use_fp8_w8a8"),
        ({"w2_scale": None}, "scale layout .w2_scale"),
        ({"w1_scale": torch.ones(4, 2, 1)}, "scale layout .w1_scale"),
        ({"a1_scale": torch.ones(1)}, "quantisation .a1_scale"),
    ],
)
def test_read_call__other_8_bit_weights_are_left_to_sglang(changes, reason):
    with pytest.raises(NotApplicableError, match=reason):
        read_call(fp8_call() | changes, INTERPRETED)


def test_read_call__of_a_newer_sglang_that_asks_for_nothing_new():
    newer = {"a1_q": None, "fuse_swiglu_interleaved": False, "defer_sum": False, "up_moe_use_tma": True}

    assert read_call(call(**newer), INTERPRETED).activation == build(CASE).activation


def test_read_call__symmetric_memory_does_not_matter_in_place():
    problem = read_call(call(inplace=True), replace(INTERPRETED, is_symmetric=True))

    assert problem.out.data_ptr() == problem.hidden.data_ptr()
