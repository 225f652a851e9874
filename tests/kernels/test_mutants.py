"""The suite must be able to fail: every wrong kernel is killed, every tolerance is one that some wrong kernel breaks."""

from dataclasses import fields, replace

import pytest

from perfgate.kernels.accuracy import TOLERANCES, Tolerance
from perfgate.kernels.cases import Case, quick_matrix
from perfgate.kernels.conformance import check
from perfgate.kernels.implementations import find
from perfgate.kernels.mutants import MUTANTS

LIMITS = [(dtype, field.name) for dtype in TOLERANCES for field in fields(Tolerance)]
# Mistakes small enough to tell a tight limit from a loose one, with a case of each dtype that shows them.
SUBTLE = {
    "float32": [("short_mantissa", Case()), ("rounded_router_weights", Case())],
    "float16": [("short_mantissa", Case(dtype="float16")), ("rounded_router_weights", Case(dtype="float16"))],
    "bfloat16": [("short_mantissa", Case(dtype="bfloat16")), ("half_sums", Case(dtype="bfloat16"))],
}


def unbroken_limits(tolerances):
    """Limits that no mutant's error crosses, as (dtype, name)."""
    return [(dtype, name) for dtype, name in LIMITS if not crossed(dtype, name, tolerances[dtype])]


def crossed(dtype, name, tolerance):
    return any(getattr(errors, name) > getattr(tolerance, name) for errors in crossed.errors[dtype])


@pytest.fixture(scope="module", autouse=True)
def measured(exam):
    """Errors of the subtle mutants, once."""
    crossed.errors = {
        dtype: [check(MUTANTS[name].implementation, exam(case)).errors for name, case in pairs]
        for dtype, pairs in SUBTLE.items()
    }


def test_mutants__are_at_least_eighteen_and_each_names_its_defect():
    assert len(MUTANTS) >= 18
    assert all(mutant.defect.endswith(".") for mutant in MUTANTS.values())


@pytest.mark.parametrize("name", MUTANTS)
def test_suite__kills_mutant(name, exam):
    killer = next((case for case in quick_matrix() if check(MUTANTS[name].implementation, exam(case)).problems), None)

    assert killer is not None, f"{name} ({MUTANTS[name].defect}) passes every case of the quick matrix"


@pytest.mark.parametrize(("dtype", "name"), LIMITS)
def test_tolerance__is_broken_by_a_subtle_mutant(dtype, name):
    assert crossed(dtype, name, TOLERANCES[dtype]), (
        f"no mutant crosses the {name} limit of {dtype}: it is too wide to say anything"
    )


@pytest.mark.parametrize(("dtype", "name"), LIMITS)
def test_unbroken_limits__finds_a_tolerance_that_is_too_wide(dtype, name):
    widened = dict(TOLERANCES) | {dtype: replace(TOLERANCES[dtype], **{name: float("inf")})}

    assert unbroken_limits(widened) == [(dtype, name)]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_tolerance__leaves_a_sound_kernel_a_margin(dtype, exam):
    """The rounding reference must pass with at least a tenth to spare, or the suite would be flaky on other hardware."""
    tight = Tolerance(**{field.name: 0.9 * getattr(TOLERANCES[dtype], field.name) for field in fields(Tolerance)})
    cases = [case for case in quick_matrix() if case.dtype == dtype]

    reports = [check(find("torch-staged"), exam(case), tight) for case in cases]

    assert [str(report) for report in reports if report.problems] == []
