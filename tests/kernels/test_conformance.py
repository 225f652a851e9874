"""Every implementation against the float64 oracle, over the matrix; `--impl module:function` points it at another one."""

import pytest

from perfgate.kernels.cases import Case, full_matrix, quick_matrix
from perfgate.kernels.conformance import VacuousCaseError, check, require_meaningful
from perfgate.kernels.problem import NotApplicableError


def test_implementation__answers_the_case(implementation, case, exam):
    prepared = exam(case)

    try:
        report = check(implementation, prepared)
    except NotApplicableError as reason:
        pytest.skip(f"{implementation.name} does not cover this: {reason}")

    assert not report.problems, str(report)


@pytest.mark.parametrize("size", [0.0, 1e-8, 1e4])
def test_require_meaningful__refuses_answers_that_make_tolerances_vacuous(exam, size):
    reference = exam(Case()).reference

    with pytest.raises(VacuousCaseError, match="root mean square"):
        require_meaningful(Case(), reference * size)


def test_report__ends_with_a_command_that_rebuilds_the_case(exam):
    from perfgate.kernels.implementations import find

    case = Case(M=3, dtype="bfloat16", scaling=2.5, mask="ep", seed=11)

    report = check(find("torch-staged"), exam(case))

    assert str(report).endswith("perfgate kernels check --impl torch-staged --case " + str(case))
    assert Case.parse(str(case)) == case


def test_full_matrix__holds_the_quick_one_and_real_layers():
    full = full_matrix()

    assert set(quick_matrix()) < set(full)
    assert {(32, 4, 2880, 2880), (128, 8, 2048, 192)} <= {(case.E, case.k, case.H, case.I) for case in full}
    assert {1, 4096, 8192} <= {case.M for case in full if case.H == 2880 and case.dtype == "bfloat16"}
