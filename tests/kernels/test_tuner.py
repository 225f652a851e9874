"""The search and its budget on made-up times; the command where there is no GPU."""

import weakref
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch
from triton.runtime.errors import OutOfResources

from perfgate.cli.moe.kernels import command, describe_tuned, parse_tokens
from perfgate.errors import InputError
from perfgate_moe.errors import MoeInputError, NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build, draw_ids
from perfgate_moe.layer.bricks import LaidOut
from perfgate_moe.layer.reference import float32, oracle
from perfgate_moe.layer.tiles import SMALL, Variant
from perfgate_moe.timing import timing, tuner
from perfgate_moe.timing.search import FP8_FEW_ROWS, FP8_MANY_ROWS, MANY_ROWS, search
from perfgate_moe.timing.shapes import SHAPES, find_shape, problems
from perfgate_moe.timing.tuner import (
    Budget,
    Searched,
    TuningError,
    find_plan,
    name_weights,
    read_weights,
    require_right,
    summarise,
    tune,
)

LAYERS = [build(LayerCase(E=4, k=2, H=32, I=32, M=16, dtype="bfloat16"))]


@pytest.fixture
def timed(monkeypatch):
    """Plans in the order in which they are timed; narrow tiles, and the tensor copy engine, are faster."""
    seen = []

    def quick_us(run, _):
        plan = run.keywords["plan"]
        seen.append(plan)
        return plan.gate_up.n + plan.down.n - 50 * plan.down.tma

    monkeypatch.setattr(tuner, "quick_us", quick_us)
    return seen


def test_find_plan__takes_the_fastest_of_its_space(timed):
    plan, searched = find_plan("ours-slots", LAYERS)

    assert (plan.variant, plan.gate_up.n, plan.down.n) == (Variant.SLOTS, 32, 32)
    assert len(searched.seen) == len(timed) == len(set(timed))


def test_find_plan__both_sides_see_the_same_tiles(timed):
    find_plan("ours-slots", LAYERS)
    ours = {(plan.gate_up, plan.down) for plan in timed}
    timed.clear()
    find_plan("sglang", LAYERS)

    assert {(plan.gate_up, plan.down) for plan in timed} == ours


@pytest.mark.parametrize("subject", ["ours-slots", "sglang"])
def test_find_plan__stops_at_its_budget_of_plans(timed, subject):
    _, searched = find_plan(subject, LAYERS, Budget(seconds=1e9, plans=3))

    assert len(timed) == 3
    assert searched.is_spent


def test_find_plan__times_one_plan_even_without_time(timed):
    plan, _ = find_plan("ours-slots", LAYERS, Budget(seconds=0.0, plans=10))

    assert timed == [plan]


def test_search__takes_the_copy_engine_and_launches_that_pay():
    def seconds(plan):
        return 10 - plan.gate_up.tma - plan.down.tma - plan.gate_up.short + plan.is_overlapped

    ours = search(Variant.SLOTS, MANY_ROWS, seconds, is_ours=True)
    theirs = search(Variant.SLOTS, MANY_ROWS, seconds, is_ours=False)

    assert (ours.gate_up.tma, ours.down.tma, ours.gate_up.short, ours.is_overlapped) == (True, True, True, False)
    assert (theirs.gate_up.short, theirs.is_overlapped) == (False, True)


def test_search__lets_the_second_product_of_8_bits_walk_behind_lower_first_ones():
    def seconds(plan):
        return 100 - plan.down.walk - (plan.gate_up.m == 128)

    best = search(Variant.SLOTS, FP8_MANY_ROWS, seconds, is_ours=True, quant="fp8")

    assert (best.down.walk, best.gate_up.walk, best.gate_up.m) == (28, 1, 64)


def test_require_right__refuses_a_plan_that_answers_wrongly(monkeypatch):
    monkeypatch.setattr(tuner, "runner", lambda *_: lambda problem: torch.zeros_like(problem.out))

    with pytest.raises(TuningError, match=r"ours-slots with .* at 16 tokens is wrong: relative error 1 >"):
        require_right("ours-slots", SMALL, LAYERS[0], "bfloat16")


@pytest.mark.parametrize("subjects", [("ours-slots", "sglang"), ("ours-slots",)])
def test_summarise__says_what_was_compared(subjects):
    found = {name: (SMALL, Searched(budget=Budget(seconds=1, plans=1))) for name in subjects}
    samples = {"ours-slots": [2.0, 2.0], "sglang": [3.0, 3.0], "again": [3.0, 3.0]}

    line = describe_tuned(summarise(16, found, samples))

    wanted = "SGLang 3.0 us, ratio 1.500 [1.500, 1.500]" if "sglang" in subjects else "ours 2.0 us; timed 0 plans of ours-slots"
    assert wanted in line


def test_tune_command__needs_a_gpu(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = CliRunner().invoke(command, ["tune", "--shape", "gpt-oss-20b", "--out", str(tmp_path / "t")], standalone_mode=False)

    assert isinstance(done.exception, MoeInputError)
    assert str(done.exception) == (
        "perfgate kernels tune needs an NVIDIA GPU, and torch sees none: run it on the device to be tuned"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", ["deepseek-v3-tp8-fp8", "gpt-oss-20b-mxfp4", "E=8,k=2,dtype=bfloat16,quant=fp8"])
def test_tune_command__takes_quantised_layers_as_far_as_the_gpu(shape):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = CliRunner().invoke(command, ["tune", "--shape", shape], standalone_mode=False)

    assert "needs an NVIDIA GPU" in str(done.exception)


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ("E=8,k=2", InputError, "plans are tuned for layers of 16 bits, add dtype=bfloat16"),
        ("E=8,k=2,H=64,I=48,dtype=bfloat16,quant=mxfp4", MoeInputError, "4-bit weights need H and I that are multiples of 32"),
        ("deepseek-v3-fp8", MoeInputError, "choose one of gpt-oss-20b, "),
    ],
)
def test_tune_command__refuses(shape, kind, message):
    done = CliRunner().invoke(command, ["tune", "--shape", shape], standalone_mode=False)

    assert isinstance(done.exception, kind)
    assert message in str(done.exception)


QUANTISED = {quant: [build(LayerCase(E=4, k=2, H=32, I=32, M=16, dtype="bfloat16", quant=quant))] for quant in ("fp8", "mxfp4")}


@pytest.mark.parametrize("quant", QUANTISED)
def test_find_plan__quantised_weights_have_a_space_of_their_own(timed, quant):
    plan, searched = find_plan("ours-slots", QUANTISED[quant])

    assert {timed_plan.gate_up.k for timed_plan in timed} == ({128} if quant == "fp8" else {64, 128, 256, 512})
    assert not any(tiles.tma or tiles.short for each in timed for tiles in (each.gate_up, each.down))
    assert {each.is_direct for each in timed} == {each.is_overlapped for each in timed} == {False, True}
    assert any(each.gate_up.rounds for each in timed) == (quant == "fp8")
    assert (plan.gate_up.n, len(searched.seen)) == (32 if quant == "fp8" else 64, len(timed))


def test_find_plan__both_sides_see_the_same_8_bit_tiles(timed):
    def tiles_seen():
        return {replace(tiles, rounds=False, tma=False) for plan in timed for tiles in (plan.gate_up, plan.down)}

    find_plan("ours-slots", QUANTISED["fp8"])
    ours = tiles_seen()
    timed.clear()
    find_plan("sglang", QUANTISED["fp8"])

    assert tiles_seen() == ours
    assert not any(tiles.rounds for plan in timed for tiles in (plan.gate_up, plan.down))
    assert all(plan.is_overlapped and not plan.is_direct for plan in timed)


def test_search__looks_at_the_second_product_again_after_the_launches():
    """Direct plans come with equal tiles, of which the second may be better as another."""

    def seconds(plan):
        return 10 - 5 * plan.is_direct - (plan.gate_up.n == 32) - (plan.down.n == 256)

    best = search(Variant.SLOTS, FP8_FEW_ROWS, seconds, is_ours=True, quant="fp8")

    assert (best.is_direct, best.gate_up.n, best.down.n) == (True, 32, 256)


def test_read_weights__sglang_has_4_bit_weights_widened_and_others_as_they_are():
    (wide,) = read_weights("sglang", QUANTISED["mxfp4"])

    assert (wide.quant, wide.gate_up.dtype) == ("none", torch.bfloat16)
    assert name_weights("sglang", QUANTISED["mxfp4"][0]) == "16 bits (widened from mxfp4)"
    assert name_weights("ours-slots", QUANTISED["mxfp4"][0]) == "mxfp4"
    assert isinstance(read_weights("ours-slots", QUANTISED["mxfp4"])[0], LaidOut)
    assert read_weights("ours-slots", QUANTISED["fp8"])[0] is QUANTISED["fp8"][0]
    assert read_weights("sglang", QUANTISED["fp8"])[0] is QUANTISED["fp8"][0]
    assert name_weights("sglang", LAYERS[0]) == "16 bits"


@pytest.mark.parametrize(("quant", "upstream", "tried"), [("fp8", "sglang", 2), ("mxfp4", "sglang-mxfp4", 0)])
def test_tune__times_quantised_layers_against_what_a_server_would_run(monkeypatch, quant, upstream, tried):
    """Without a GPU: the reference in place of both sides, so that the whole procedure runs."""
    for peer in (tuner.sglang_peer, tuner.sglang_mxfp4_peer):
        monkeypatch.setattr(peer, "is_installed", lambda: True)
    for step in ("load", "route_ahead"):
        monkeypatch.setattr(tuner.sglang_mxfp4_peer, step, lambda problem: problem)
    monkeypatch.setattr(tuner, "runner", lambda *_: float32)
    monkeypatch.setattr(tuner, "quick_us", lambda *_: 1.0)
    case = LayerCase(E=4, k=2, H=32, I=32, M=16, dtype="bfloat16", quant=quant)

    (result,) = tune(case, [3], [build(case)], Budget(seconds=1e9, plans=2))

    assert result["tried"] == {"ours-slots": 2, upstream: tried}
    assert (result["upstream_plan"] is None) == (quant == "mxfp4")
    assert f"; timed 2 plans of ours-slots, {tried} plans of {upstream}" in describe_tuned(result)


@pytest.mark.parametrize(("precision", "is_right"), [("fp8", True), ("bfloat16", False)])
def test_require_right__judges_by_the_precision_of_the_case(monkeypatch, precision, is_right):
    answer = oracle(LAYERS[0]) * 1.01
    monkeypatch.setattr(tuner, "runner", lambda *_: lambda _: answer)

    if is_right:
        require_right("ours-slots", SMALL, LAYERS[0], precision)
    else:
        with pytest.raises(TuningError, match=r"relative error 0\.01 >"):
            require_right("ours-slots", SMALL, LAYERS[0], precision)


@pytest.mark.parametrize("subject", ["ours-slots", "sglang"])
@pytest.mark.parametrize(("error", "is_right"), [(0.025, True), (0.03, False)])
def test_require_right__holds_sglang_to_the_same_limits(monkeypatch, subject, error, is_right):
    answer = oracle(LAYERS[0]) * (1 + error)
    monkeypatch.setattr(tuner, "runner", lambda *_: lambda _: answer)

    if is_right:
        require_right(subject, SMALL, LAYERS[0], "fp8")
    else:
        with pytest.raises(TuningError, match=f"{subject} with .* is wrong: relative error"):
            require_right(subject, SMALL, LAYERS[0], "fp8")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("PassManager::run failed"), AssertionError("tiles"), OutOfResources(1, 2, "m"), NotApplicableError("walk")],
)
def test_quick_us__a_plan_that_cannot_run_is_infinitely_slow(error):
    def run(_):
        raise error

    def capture(run, problems):
        run(problems[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "record", capture)
        assert timing.quick_us(run, LAYERS) == float("inf")


@pytest.mark.parametrize("text", ["", "0", "1,,2", "-1", "1.5", "eight"])
def test_parse_tokens__refuses(text):
    with pytest.raises(InputError, match="give whole numbers above 0"):
        parse_tokens(text)


def test_parse_tokens__orders_and_drops_repetitions():
    assert parse_tokens("64,1,64") == [1, 64]


def test_find_shape__by_name_or_sizes():
    assert find_shape("gpt-oss-20b") is SHAPES["gpt-oss-20b"]
    assert find_shape("E=4,k=2,H=32,I=32") == LayerCase(E=4, k=2, H=32, I=32)
    with pytest.raises(MoeInputError, match="choose one of gpt-oss-20b, qwen3-30b"):
        find_shape("gpt-oss-21b")


@pytest.mark.parametrize(("routing", "distinct"), [("uniform", 28.1), ("zipf", 20.8)])
def test_draw_ids__experts_that_16_tokens_touch_are_those_of_the_page(routing, distinct):
    """A recorded step of the routed model touches 25.1 to 27.2: between both patterns that are timed."""
    case = replace(SHAPES["gpt-oss-20b-mxfp4"], M=16, routing=routing)
    touched = [len(draw_ids(case, torch.Generator().manual_seed(seed)).unique()) for seed in range(100, 164)]

    assert round(sum(touched) / len(touched), 1) == distinct


def test_problems__walk_through_the_weights_with_fresh_tokens():
    weights = [build(LayerCase(E=4, k=2, H=32, I=32, M=1, seed=seed)) for seed in range(2)]

    made = problems(LayerCase(E=4, k=2, H=32, I=32), 5, weights)

    assert [layer.gate_up.data_ptr() for layer in made[:3]] == [weights[i].gate_up.data_ptr() for i in (0, 1, 0)]
    assert len({layer.hidden.sum().item() for layer in made}) == len(made)
    assert {tuple(layer.topk_ids.shape) for layer in made} == {(5, 2)}


def test_record__a_graph_keeps_what_it_reads(monkeypatch):
    monkeypatch.setattr(timing, "torch", MagicMock())
    layers = [type("OnGpu", (), {"hidden": SimpleNamespace(is_cuda=True)})()]
    kept = weakref.ref(layers[0])
    recorded = timing.record(lambda _: None, layers)
    del layers

    assert kept() is not None
    del recorded
    assert kept() is None
