"""What our hooks make of calls of SGLang's runner of 4-bit weights, without SGLang; test_interpreter.py computes layers."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.engines import micro_swap
from perfgate_moe.engines.counters import Counters
from perfgate_moe.engines.micro_swap import MicroSwap, Waiting
from perfgate_moe.engines.swap import ServerState
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build

NEW = ("a_ragged_metadata", "gather_indx", "scatter_indx", "gate_scal", "n_expts_act")
SERVER = ServerState(is_interpreted=True)
PROBLEM = build(LayerCase(E=4, k=2, H=64, I=64, M=3, dtype="float16", quant="mxfp4"))


@dataclass
class Weight:
    """What SGLang's runner reads: an object with the weight in a layout of its own."""

    data: torch.Tensor


def swizzle(quant_tensor, scale, num_warps):
    return Weight(quant_tensor), "flex", (scale, num_warps)


def routing(logits, n_expts_act, **words):
    return tuple(f"table {place} of {n_expts_act} for {len(logits)}, {words}" for place in range(5))


def runner(hidden_states, w1, w2, n_expts_act):
    """The names of a call that is not by name."""


@pytest.fixture
def swap():
    return MicroSwap(mode="slots", counters=Counters(mode="slots", versions={}), server=lambda: SERVER, tables=NEW)


def call(swap, **changes):
    """A call of the runner as SGLang's MoeRunner makes it."""
    first, *_ = swap.lay_out(swizzle, PROBLEM.gate_up, PROBLEM.scales.gate_up, 8)
    second, *_ = swap.lay_out(swizzle, PROBLEM.down, PROBLEM.scales.down, 8)
    tables = swap.put_off(routing, torch.zeros(3, 4, dtype=torch.float16), 2, n_rows=None)
    return {
        "hidden_states": PROBLEM.hidden, "w1": first, "w2": second, "b1": PROBLEM.gate_up_bias, "b2": PROBLEM.down_bias,
        "inplace": False, "activation": "silu", "apply_router_weight_on_input": False, "global_num_experts": -1,
        "gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0, **dict(zip(swap.tables, tables, strict=True)),
    } | changes  # fmt: skip


def test_put_off__stands_for_every_table_until_the_layer_is_sglangs(swap):
    asked = call(swap)
    assert all(isinstance(asked[name], Waiting) for name in NEW)

    seen = []
    for changes in ({"activation": "gelu"}, {"scatter_indx": None}):
        swap.run(lambda **words: seen.append(words), asked | changes)

    made = {name: f"table {place} of 2 for 3, {{'n_rows': None}}" for place, name in enumerate(NEW)}
    assert [{name: words[name] for name in NEW} for words in seen] == [made, made | {"scatter_indx": None}]
    assert swap.counters.fallbacks == {"activation='gelu'": 1, "a router or a runner that asks for something else": 1}


def test_put_off__leaves_scores_that_are_normalised_first_to_sglang(swap):
    assert swap.put_off(routing, "abc", 2, sm_first=True) == routing("abc", 2, sm_first=True)


def test_around__reads_arguments_by_place_as_well(swap):
    seen = []
    hook = swap.around(runner)
    hook(lambda **words: seen.append(words), "hidden", "w1", w2="w2")

    assert seen == [{"hidden_states": "hidden", "w1": "w1", "w2": "w2"}]
    assert swap.counters.fallbacks == {"a router or a runner that asks for something else": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gate_scal": "its own"}, "a router or a runner that asks for something else"),
        ({"inplace": True}, "inplace=True"),
        ({"expert_map": "map"}, "expert_map='map'"),
        ({"swiglu_beta": 2.0}, "the unknown swiglu_beta"),
        ({"w2": Weight(None)}, "weights that were not laid out in bricks"),
        ({"gemm1_alpha": None}, "another activation than gpt-oss'"),
        ({"hidden_states": PROBLEM.hidden.float()}, "hidden states of another type or width"),
        ({"hidden_states": PROBLEM.hidden[:, :32]}, "hidden states of another type or width"),
        ({"hidden_states": PROBLEM.hidden.T.contiguous().T}, "hidden states or scores not contiguous"),
        ({"hidden_states": PROBLEM.hidden[:0]}, "no tokens"),
        ({"hidden_states": PROBLEM.hidden[:2]}, "experts that are not all at hand"),
    ],
)
def test_run__leaves_what_our_kernels_do_not_cover_to_sglang(swap, changes, reason):
    assert swap.run(lambda **_: "theirs", call(swap, **changes)) == "theirs"
    assert swap.counters.fallbacks == {reason: 1}


@pytest.mark.parametrize("plain", [{"swiglu_beta": None}, {"new_flag": False}])
def test_read_call__a_new_parameter_that_asks_for_nothing_changes_nothing(swap, plain):
    problem, scores = micro_swap.read_call(call(swap, **plain), NEW, SERVER)

    assert (problem.form, problem.hidden_size, problem.intermediate_size, problem.top_k) == ("bricks", 64, 64, 2)
    assert scores.shape == (3, 4)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (ServerState(is_interpreted=True, is_deterministic=True), "deterministic inference: tiles depend on the batch"),
        (ServerState(is_interpreted=True, is_symmetric=True), "answer in symmetric memory"),
        (ServerState(), "device cpu"),
    ],
)
def test_run__leaves_what_the_server_asks_for_besides(swap, server, reason):
    asked = call(swap)
    assert replace(swap, server=lambda: server).run(lambda **_: "theirs", asked) == "theirs"
    assert swap.counters.fallbacks == {reason: 1}


def test_lay_out__auto_keeps_no_second_copy_where_nothing_was_tuned(swap, monkeypatch):
    auto = replace(swap, mode="auto")
    weight, *rest = auto.lay_out(swizzle, PROBLEM.down, PROBLEM.scales.down, 8)

    assert not hasattr(weight, micro_swap.BRICKS)
    assert rest == ["flex", (PROBLEM.scales.down, 8)]
    monkeypatch.setattr(micro_swap, "has_plans", lambda _: True)
    laid, *_ = auto.lay_out(swizzle, PROBLEM.down, PROBLEM.scales.down, 8)
    assert hasattr(laid, micro_swap.BRICKS)


@pytest.mark.parametrize(("names", "found"), [(("E=32,k=4,swiglu,bricks",), True), (("E=32,k=4,swiglu,mxfp4",), False)])
def test_has_plans__of_bricks_on_this_device(monkeypatch, names, found):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(micro_swap, "stored", lambda _: dict.fromkeys(names))

    assert micro_swap.has_plans(SimpleNamespace(type="cuda")) is found
    assert micro_swap.has_plans(SimpleNamespace(type="cpu")) is False
