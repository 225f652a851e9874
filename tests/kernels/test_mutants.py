"""The suite must be able to fail: every wrong kernel is killed, every tolerance is one that some wrong kernel breaks."""

from dataclasses import fields, replace

import pytest

from perfgate_moe.exam.accuracy import TOLERANCES, Tolerance
from perfgate_moe.exam.cases import LayerCase, quick_matrix
from perfgate_moe.exam.conformance import check
from perfgate_moe.exam.implementations import find
from perfgate_moe.exam.mutants import MUTANTS

LIMITS = [(dtype, field.name) for dtype in TOLERANCES for field in fields(Tolerance)]
# Mistakes just beyond what rounding explains: they cross every limit of their dtype, and by at most FACTOR.
SUBTLE = {
    "float32": ("split_operands", LayerCase()),
    "float16": ("half_sums", LayerCase(dtype="float16", H=511, M=65, activation="silu", bias="off")),
    "bfloat16": ("half_sums", LayerCase(dtype="bfloat16", H=511, M=65, activation="silu", bias="off")),
    "fp8": (
        "one_activation_scale_for_a_token",
        LayerCase(dtype="bfloat16", H=511, M=65, activation="silu", bias="off", quant="fp8"),
    ),
}
FACTOR = 30


def unbroken_limits(tolerances):
    """Limits that no mutant's error crosses, as (dtype, name)."""
    return [(dtype, name) for dtype, name in LIMITS if not crossed(dtype, name, tolerances[dtype])]


def crossed(dtype, name, tolerance):
    return getattr(crossed.errors[dtype], name) > getattr(tolerance, name)


@pytest.fixture(scope="module", autouse=True)
def measured(exam):
    """Errors of the subtle mutants, once."""
    crossed.errors = {dtype: check(MUTANTS[name].implementation, exam(case)).errors for dtype, (name, case) in SUBTLE.items()}


def test_mutants__are_at_least_eighteen_and_each_names_its_defect():
    assert len(MUTANTS) >= 18
    assert all(mutant.defect.endswith(".") for mutant in MUTANTS.values())


@pytest.mark.parametrize("name", MUTANTS)
def test_suite__kills_mutant(name, exam):
    cases = [case for case in quick_matrix() if case.quant == MUTANTS[name].quant]
    killer = next((case for case in cases if check(MUTANTS[name].implementation, exam(case)).problems), None)

    assert killer is not None, f"{name} ({MUTANTS[name].defect}) passes every case of the quick matrix"


@pytest.mark.parametrize(("dtype", "name"), LIMITS)
def test_tolerance__is_broken_by_a_subtle_mutant(dtype, name):
    limit = getattr(TOLERANCES[dtype], name)

    assert limit < getattr(crossed.errors[dtype], name) < FACTOR * limit


@pytest.mark.parametrize(("dtype", "name"), LIMITS)
def test_unbroken_limits__finds_a_tolerance_that_is_too_wide(dtype, name):
    widened = dict(TOLERANCES) | {dtype: replace(TOLERANCES[dtype], **{name: float("inf")})}

    assert unbroken_limits(widened) == [(dtype, name)]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_tolerance__leaves_a_sound_kernel_a_margin(dtype, exam):
    """The rounding reference must pass with at least a tenth to spare, or the suite would be flaky on other hardware."""
    tight = Tolerance(**{field.name: 0.9 * getattr(TOLERANCES[dtype], field.name) for field in fields(Tolerance)})
    cases = [case for case in quick_matrix() if case.precision == dtype]

    reports = [check(find("torch-staged"), exam(case), tight) for case in cases]

    assert [str(report) for report in reports if report.problems] == []
