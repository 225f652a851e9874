"""The search and its budget on made-up times; the command where there is no GPU."""

import pytest
from click.testing import CliRunner

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch

from perfgate.cli.kernels import command, describe_tuned, parse_tokens
from perfgate.errors import InputError
from perfgate.kernels import tuner
from perfgate.kernels.cases import Case
from perfgate.kernels.data import build
from perfgate.kernels.search import MANY_ROWS, search
from perfgate.kernels.shapes import SHAPES, find_shape, problems
from perfgate.kernels.tiles import SMALL, Variant
from perfgate.kernels.tuner import Budget, Searched, TuningError, find_plan, require_right, summarise

LAYERS = [build(Case(E=4, k=2, H=32, I=32, M=16, dtype="bfloat16"))]


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

    assert isinstance(done.exception, InputError)
    assert str(done.exception) == (
        "perfgate kernels tune needs an NVIDIA GPU, and torch sees none: run it on the device to be tuned"
    )
    assert not list(tmp_path.iterdir())


def test_tune_command__has_no_plans_for_other_weights():
    done = CliRunner().invoke(command, ["tune", "--shape", "E=8,k=2,dtype=bfloat16,quant=fp8"], standalone_mode=False)

    assert isinstance(done.exception, InputError)
    assert "plans are tuned for 16-bit weights only" in str(done.exception)


@pytest.mark.parametrize("text", ["", "0", "1,,2", "-1", "1.5", "eight"])
def test_parse_tokens__refuses(text):
    with pytest.raises(InputError, match="give whole numbers above 0"):
        parse_tokens(text)


def test_parse_tokens__orders_and_drops_repetitions():
    assert parse_tokens("64,1,64") == [1, 64]


def test_find_shape__by_name_or_sizes():
    assert find_shape("gpt-oss-20b") is SHAPES["gpt-oss-20b"]
    assert find_shape("E=4,k=2,H=32,I=32") == Case(E=4, k=2, H=32, I=32)
    with pytest.raises(InputError, match="choose one of gpt-oss-20b, qwen3-30b"):
        find_shape("gpt-oss-21b")


def test_problems__walk_through_the_weights_with_fresh_tokens():
    weights = [build(Case(E=4, k=2, H=32, I=32, M=1, seed=seed)) for seed in range(2)]

    made = problems(Case(E=4, k=2, H=32, I=32), 5, weights)

    assert [layer.gate_up.data_ptr() for layer in made[:3]] == [weights[i].gate_up.data_ptr() for i in (0, 1, 0)]
    assert len({layer.hidden.sum().item() for layer in made}) == len(made)
    assert {tuple(layer.topk_ids.shape) for layer in made} == {(5, 2)}
