"""benchmarks/kernels/execution.py and the drift that it measures, as far as a CPU can say."""

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.accuracy import RELAXED, AnswerDrift, measure_drift
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.exam.implementations import find
from perfgate_moe.layer.reference import float32, staged
from tests.kernels.scripts import loaded

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "kernels" / "execution.py"
TOY = {"E": 4, "k": 2, "H": 32, "I": 32}
calls = count()


@pytest.fixture(scope="module")
def execution():
    with loaded("execution") as module:
        yield module


@pytest.fixture
def problem():
    return build(LayerCase(**TOY, M=5, dtype="bfloat16"))


def by_tokens(problem):
    """Computes every token by itself."""
    rows = [float32(alone(problem, token)) for token in range(problem.tokens)]
    return problem.out.copy_(torch.cat(rows))


def alone(problem, token):
    rows = slice(token, token + 1)
    own = {name: getattr(problem, name)[rows].contiguous() for name in ("hidden", "topk_weights", "topk_ids")}
    return replace(problem, **own, out=torch.empty_like(own["hidden"]))


def restless(problem):
    """Never gives the same bits twice."""
    answer = staged(problem)
    answer[0, 0] *= 1 + 2.0 ** -(next(calls) % 5)
    return answer


def scaled_by_batch(problem):
    """A token's answer depends on how many are asked with it."""
    return by_tokens(problem) * (2 if problem.tokens > 1 else 1)


def stale(problem):
    """Gives what its output buffer holds."""
    return problem.out


def refuses(problem):
    raise NotApplicableError(f"{problem.tokens} tokens are not covered")


def crashes(problem):
    raise RuntimeError(f"out of luck\nwith {problem.tokens} tokens")


def implementation(function, *, is_deterministic=True):
    return SimpleNamespace(name=function.__name__, is_deterministic=is_deterministic, load=lambda: function)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [1.0, 1.5, 100.0])
def test_measure_drift__counts_units_in_the_last_place(dtype, value):
    one = torch.full((4, 25), value, dtype=dtype)
    other = one.clone()
    other[2, 7] = torch.nextafter(one[2, 7], torch.tensor(1e4, dtype=dtype))

    assert measure_drift(other, one) == AnswerDrift(ulps=1.0, share=0.01)
    assert measure_drift(one, one.clone()) == AnswerDrift(ulps=0.0, share=0.0)


def test_measure_drift__of_cancelled_elements_is_in_units_of_their_row():
    one = torch.ones(1, 100, dtype=torch.bfloat16)
    one[0, 0] = 1e-6
    other = one.clone()
    other[0, 0] = 2e-6

    drift = measure_drift(other, one)

    assert 0 < drift.ulps < 0.1
    assert drift.share == 0.01


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_measure_drift__of_what_is_no_number_on_one_side_only_is_infinite(value):
    one = torch.ones(2, 4)
    other = one.clone()
    other[1, 1] = value

    assert measure_drift(one, other).ulps == float("inf")
    assert measure_drift(other, other.clone()) == AnswerDrift(ulps=0.0, share=0.0)


@pytest.mark.parametrize(
    ("drift", "is_too_much"),
    [
        (AnswerDrift(ulps=1, share=5e-4), False),
        (AnswerDrift(ulps=2, share=1e-6), True),
        (AnswerDrift(ulps=1, share=6e-4), True),
        (AnswerDrift(ulps=float("nan"), share=0), True),
    ],
)
def test_exceeds__either_measure(drift, is_too_much):
    assert drift.exceeds(RELAXED) is is_too_much


@pytest.mark.parametrize(
    ("function", "check", "state"),
    [
        (staged, "rerun", "sound"),
        (restless, "rerun", "wrong"),
        (by_tokens, "ask_alone", "sound"),
        (scaled_by_batch, "ask_alone", "wrong"),
        (refuses, "rerun", "skipped"),
        (crashes, "rerun", "wrong"),
    ],
)
def test_judge__on_the_cpu(execution, problem, function, check, state):
    outcome = execution.judge("20 reruns", getattr(execution, check), implementation(function), "toy", problem)

    assert outcome.state == state, str(outcome)
    assert state in str(outcome)


def test_judge__relaxed_additions_may_drift_by_one_unit_only(execution, problem):
    outcome = execution.judge("20 reruns", execution.rerun, implementation(restless, is_deterministic=False), "toy", problem)

    assert (outcome.state, outcome.seen.ulps > 1) == ("wrong", True)


def test_judge__what_compilation_cannot_do_is_left_out_with_its_reason(execution, problem):
    outcome = execution.judge("torch.compile", execution.rerun, implementation(crashes), "toy", problem)

    assert (outcome.state, outcome.reason) == ("skipped", "RuntimeError: out of luck")


def test_rerun__garbage_in_the_output_is_no_answer(execution, problem):
    problem.out.fill_(1.0)

    assert execution.rerun(stale, problem).share == 1.0


def test_shuffle__changes_routing_and_activations(execution, problem):
    changed = execution.shuffle(problem, 1)

    assert not torch.equal(changed.topk_ids, problem.topk_ids)
    assert measure_drift(staged(changed), staged(problem)).share > 0.9
    assert changed.topk_ids.min() >= 0
    assert changed.topk_ids.max() < 4


def test_feed__a_captured_buffer_answers_the_new_question(execution, problem):
    static = execution.take(problem, slice(None))
    changed = execution.shuffle(problem, 2)

    execution.feed(static, changed)

    assert torch.equal(staged(static), staged(changed))
    assert bool((static.out == execution.GARBAGE).all())


def test_examine__every_check_of_a_variant_on_every_layer(execution):
    outcomes = list(execution.examine(("torch-staged",), "cpu", TOY, (1, 3)))

    assert [(one.check, one.state) for one in outcomes] == [("20 reruns", "sound")] * 3
    assert len({one.layer for one in outcomes}) == 3


def test_checks_for__each_variant_on_a_device(execution):
    for name in execution.VARIANTS:
        found = execution.checks_for(name, on_cuda=True, is_small=True)

        assert len(found) == 5 + (name == "triton-owner")
        assert not find(name).is_deterministic or execution.allowed(find(name)) == AnswerDrift(ulps=0.0, share=0.0)
    assert execution.allowed(find("triton-atomic32")) == RELAXED


def test_main__without_a_device_says_so(execution, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["execution.py", f"--out={tmp_path / 'out.json'}"])

    assert execution.main() == 2
    assert capsys.readouterr().err.count("\n") == 1
