"""Say in words what a wrong kernel does: which known mistake gives the same answers, else where the answers are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from perfgate_moe.exam.accuracy import TOLERANCES, Tolerance, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import CRASHES, PreparedCase, describe_form, judge, prepare
from perfgate_moe.exam.implementations import Implementation
from perfgate_moe.exam.mutants import MUTANTS, Mutant

MOST_WRONG, MOST_RIGHT = 8, 4
"""How many wrong cases a mistake is compared in, the smallest first, and how many in which the kernel is right."""

MOST_WEIGHTS = 1 << 24
"""E * H * I of the largest layer that is compared along with others."""

LEAST_EXPLAINED = 0.5
"""The share of the wrong answers that a mistake must give, to be named."""

TWICE = 2.0
"""A wrong kernel and a mutant round in places of their own: two sound layers are this many limits apart at most."""


def diagnose(implementation: Implementation, wrong: Sequence[LayerCase], right: Sequence[LayerCase], device: str) -> str:
    """The mistake that gives most of an implementation's wrong answers, and is right where it is right; or where it is wrong.

    Empty where no wrong answer could be looked at: each raised, or is right here and wrong in a rerun or in a damaged input.
    """
    exams = [prepare(case, device) for case in _pick(wrong, MOST_WRONG)]
    asked = [(exam, answer) for exam in exams if (answer := _answer(implementation, exam)) is not None]
    # A right answer is near that of each mistake that does not show in its case.
    answered = [(exam, answer) for exam, answer in asked if judge(answer, exam, TOLERANCES[exam.case.precision])[1]]
    if not answered:
        return ""
    controls = [prepare(case, device) for case in _pick(right, MOST_RIGHT)]
    scores = {name: _score(mutant, answered, controls) for name, mutant in MUTANTS.items() if mutant.is_pure}
    best = max(scores, key=lambda name: scores[name])
    explained = int(scores[best][0])
    if explained >= LEAST_EXPLAINED * len(answered):
        return (
            f"{MUTANTS[best].defect} A layer with that mistake gives {explained} of the {len(answered)} wrong answers compared."
        )
    return next(filter(None, (locate(answer, exam) for exam, answer in answered)), "")


def _pick(cases: Sequence[LayerCase], most: int) -> list[LayerCase]:
    """The cheapest cases; of layers of real models, which take every mistake seconds, one where there is no other."""
    ordered = sorted(cases, key=lambda case: case.E * case.H * case.I + case.M * case.k * case.H)
    small = [case for case in ordered if case.E * case.H * case.I <= MOST_WEIGHTS]
    return small[:most] or ordered[:1]


def _answer(implementation: Implementation, exam: PreparedCase) -> Tensor | None:
    """What an implementation answers, on copies of the inputs; None where it raises or the form is wrong."""
    own = replace(exam.problem, out=torch.full_like(exam.problem.out, float("nan")), **exam.copy_inputs())
    try:
        answer = implementation.load()(own)
    except CRASHES:
        return None
    return None if describe_form(answer, own.out) else answer


def _score(
    mutant: Mutant, answered: Sequence[tuple[PreparedCase, Tensor]], controls: Sequence[PreparedCase]
) -> tuple[int, int, float]:
    """How many wrong answers a mistake gives, in how many controls it is right, and how near it comes to the former."""
    distances = [_distance(mutant, exam, answer) for exam, answer in answered if _is_of(mutant, exam.case)]
    kept = sum(_is_right(mutant, exam) for exam in controls)
    near = [one for one in distances if one <= TWICE]
    return len(near), kept, -sum(near)


def _is_of(mutant: Mutant, case: LayerCase) -> bool:
    """Whether the mistake can be made in a case: each concerns one format of weights."""
    return mutant.quant in ("none", case.quant)


def _distance(mutant: Mutant, exam: PreparedCase, answer: Tensor) -> float:
    """How far an answer is from a mistake's, as a share of what two sound layers may differ by; infinite where NaN differ."""
    made = _answer(mutant.implementation, exam)
    if made is None or not torch.equal(made.isfinite(), answer.isfinite()):
        return float("inf")
    rows = made.isfinite().all(dim=1)
    errors, limits = measure(answer[rows], made[rows].double()), TOLERANCES[exam.case.precision]
    return max(errors.relative / limits.relative, errors.worst_element / limits.worst_element)


def _is_right(mutant: Mutant, exam: PreparedCase) -> bool:
    """Whether a mistake does not show in a case."""
    made = _answer(mutant.implementation, exam)
    if made is None:
        return False
    sound = exam.reference.isfinite().all(dim=1)
    limits: Tolerance = TOLERANCES[exam.case.precision]
    is_finite = bool(made[sound].isfinite().all())
    return is_finite and not limits.violations(measure(made[sound], exam.reference[sound]))


def locate(answer: Tensor, exam: PreparedCase) -> str:
    """Which rows and columns of an answer are wrong, in words; empty where all are, or none."""
    row_rms = exam.reference.square().mean(dim=1, keepdim=True).sqrt()
    limit = TOLERANCES[exam.case.precision].worst_element
    difference = (answer.double() - exam.reference).abs()
    wrong = ~(difference <= limit * row_rms) & exam.reference.isfinite().all(dim=1, keepdim=True)
    places = list(_name_places(wrong))
    return f"Wrong in {' and '.join(places)}, right elsewhere ({exam.case})." if places else ""


def _name_places(wrong: Tensor) -> Iterator[str]:
    for name, dim in (("tokens", 1), ("columns", 0)):
        hit = wrong.any(dim=dim)
        found = torch.nonzero(hit).flatten().tolist()
        if found and len(found) < hit.numel():
            is_whole = len(found) == found[-1] - found[0] + 1
            span = f"{name} {found[0]:,} to {found[-1]:,}"
            yield span if is_whole else f"{len(found):,} {name} of {hit.numel():,} within {span}"
