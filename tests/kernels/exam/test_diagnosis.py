"""A wrong kernel is told in words: which known mistake it makes, or where it is wrong."""

from dataclasses import replace

import pytest
import torch

from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import prepare
from perfgate_moe.exam.diagnosis import _pick, diagnose, locate
from perfgate_moe.exam.implementations import Implementation
from perfgate_moe.layer import reference
from perfgate_moe.layer.reference import Steps, layer

CASES = [LayerCase(M=count, dtype="bfloat16", scaling=scaling) for count in (5, 9) for scaling in (1.0, 2.5)]


def implement(monkeypatch, run):
    """A kernel from elsewhere: it sums in float32 and rounds once, where the suite's mutants round in more places."""
    monkeypatch.setattr("tests.kernels.exam.test_diagnosis.RUN", run, raising=False)
    return Implementation(name="stranger", target="tests.kernels.exam.test_diagnosis:call")


RUN = None


def call(problem):
    return RUN(problem)


def without_scaling(problem):
    return reference.float32(replace(problem, routed_scaling=1.0))


def swapped_halves(problem):
    def activate(rows, activation):
        gate, up = reference.split_gate_up(rows, interleaved=activation.interleaved)
        return reference.activate(torch.cat([up, gate], dim=1), replace(activation, interleaved=False))

    return reference.cast(problem, layer(problem, torch.float32, Steps(activate=activate)))


def weighted_early(problem):
    """Router weights before the activation, slot by slot."""
    out = torch.zeros(problem.out.shape)
    for token in range(problem.tokens):
        for slot in range(problem.top_k):
            expert = int(problem.topk_ids[token, slot])
            row = problem.hidden[token : token + 1].float()
            gate_up = reference.project(row, problem.gate_up[expert].float(), problem.gate_up_bias[expert].float())
            inner = reference.activate(gate_up * problem.topk_weights[token, slot], problem.activation)
            outer = reference.project(inner, problem.down[expert].float(), problem.down_bias[expert].float())
            out[token] += outer[0] * problem.routed_scaling
    return out.to(problem.out.dtype)


@pytest.mark.parametrize(
    ("run", "wrong", "right", "words"),
    [
        (without_scaling, CASES[1::2], CASES[0::2], "The routed scaling factor is never applied."),
        (swapped_halves, CASES, (), "Gate and up change places."),
        (weighted_early, CASES, (), "The router weight is applied before the activation instead of after the second product."),
    ],
)
def test_diagnose__names_the_mistake_of_a_kernel_that_rounds_elsewhere(monkeypatch, run, wrong, right, words):
    told = diagnose(implement(monkeypatch, run), wrong, right, "cpu")

    assert told == f"{words} A layer with that mistake gives {len(wrong)} of the {len(wrong)} wrong answers compared."


def test_diagnose__what_no_mistake_explains_is_told_by_its_place(monkeypatch):
    def spoiled(problem):
        answer = reference.float32(problem)
        answer[2:4, 10:20] = 0.25
        return answer

    told = diagnose(implement(monkeypatch, spoiled), CASES[:1], (), "cpu")

    assert told == f"Wrong in tokens 2 to 3 and columns 10 to 19, right elsewhere ({CASES[0]})."


def test_diagnose__a_kernel_that_raises_everywhere(monkeypatch):
    def raising(problem):
        raise RuntimeError(problem.tokens)

    assert diagnose(implement(monkeypatch, raising), CASES, (), "cpu") == ""


def test_diagnose__a_case_whose_values_are_right_is_no_evidence(monkeypatch):
    def wrong_with_nine_tokens(problem):
        return without_scaling(problem) if problem.tokens == 9 else reference.float32(problem)

    assert diagnose(implement(monkeypatch, reference.float32), CASES, (), "cpu") == ""
    told = diagnose(implement(monkeypatch, wrong_with_nine_tokens), [CASES[1], CASES[3]], (), "cpu")
    assert told.endswith("A layer with that mistake gives 1 of the 1 wrong answers compared.")


def test_pick__of_large_layers_one_and_only_where_no_small_one_is():
    large = [LayerCase(E=256, k=8, H=7168, I=256, M=count, dtype="bfloat16") for count in (8200, 64)]

    assert _pick([*large, *CASES], 3) == [CASES[0], CASES[1], CASES[2]]
    assert _pick(large, 3) == [large[1]]


def test_locate__rows_that_do_not_follow_one_another():
    exam = prepare(CASES[2])
    answer = exam.reference.bfloat16()
    answer[0] = answer[4] = 0

    assert locate(answer, exam) == f"Wrong in 2 tokens of 9 within tokens 0 to 4, right elsewhere ({CASES[2]})."
    assert locate(exam.reference.bfloat16(), exam) == ""
