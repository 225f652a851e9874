"""Every implementation against the float64 oracle, over the matrix; `--impl module:function` points it at another one."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from perfgate_moe.errors import NotApplicableError, VacuousCaseError
from perfgate_moe.exam.cases import HALF_DTYPES, LayerCase, exam_matrix, full_matrix, half_matrix, quick_matrix
from perfgate_moe.exam.conformance import check, require_meaningful
from perfgate_moe.exam.implementations import Implementation, find
from perfgate_moe.exam.mutants import MUTANTS
from perfgate_moe.layer.reference import staged
from perfgate_moe.timing.shapes import EXAM_SHAPES, SHAPES

ROOT = Path(__file__).parents[3]
STRAYS = """
    import gc
    from perfgate_moe.exam.conformance import PreparedCase
    from perfgate_moe.layer.reference import staged

    def layer(problem):
        for exam in (each for each in gc.get_objects() if type(each) is PreparedCase):
            exam.reference.zero_()
        return staged(problem)
"""


def test_implementation__answers_the_case(implementation, case, exam):
    prepared = exam(case)

    try:
        report = check(implementation, prepared)
    except NotApplicableError as reason:
        pytest.skip(f"{implementation.name} does not cover this: {reason}")

    if report.problems:
        exam.cache_clear()  # a stray write may have hit a reference or a copy, which would spoil the next answer
    assert not report.problems, str(report)


def test_implementation__that_damages_the_exam_spoils_no_other_answer(tmp_path):
    (tmp_path / "strays.py").write_text(textwrap.dedent(STRAYS))
    case, names = quick_matrix()[0], ("strays:layer", "torch-staged")
    test = f"{Path(__file__)}::test_implementation__answers_the_case"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--on-cpu"]
    argv += [f"--impl={name}" for name in names] + [f"{test}[{name}-{case}]" for name in names]
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip

    assert "1 failed, 1 passed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("size", [0.0, 1e-8, 1e4])
def test_require_meaningful__refuses_answers_that_make_tolerances_vacuous(exam, size):
    reference = exam(LayerCase()).reference

    with pytest.raises(VacuousCaseError, match="root mean square"):
        require_meaningful(LayerCase(), reference * size)


def test_report__ends_with_a_command_that_rebuilds_the_case(exam):
    case = LayerCase(M=3, dtype="bfloat16", scaling=2.5, mask="ep", seed=11)

    report = check(find("torch-staged"), exam(case))

    assert str(report).endswith("perfgate kernels check --impl torch-staged --case " + str(case))
    assert LayerCase.parse(str(case)) == case


def test_full_matrix__holds_the_quick_one_and_real_layers():
    full = full_matrix()

    assert set(quick_matrix()) < set(full)
    assert {(32, 4, 2880, 2880), (128, 8, 2048, 192)} <= {(case.E, case.k, case.H, case.I) for case in full}
    assert {1, 4096, 8192} <= {case.M for case in full if case.H == 2880 and case.dtype == "bfloat16"}


def test_full_matrix__varies_every_axis_in_16_bits_too():
    full = full_matrix()
    for dtype in HALF_DTYPES:
        own = [case for case in full if case.dtype == dtype and case.quant == "none"]

        for name in ("routing", "mask", "weights", "bias", "data", "activation", "on_input", "scaling"):
            assert {getattr(case, name) for case in own} >= {getattr(case, name) for case in quick_matrix()}, name
        assert {case.M for case in own} >= {0, 14, 18, 30, 34, 62, 66, 126, 128, 130, 1000}
        assert any(case.H % 2 and case.activation == "swiglu-chunked" for case in own)
        assert any(case.I % 2 and case.on_input for case in own)


def test_full_matrix__has_a_weight_that_32_bit_offsets_cannot_reach_and_the_quick_one_has_not():
    def largest(cases):
        return max(2 * case.E * case.I * case.H for case in cases)

    assert largest(full_matrix()) > 1 << 31
    assert largest((*quick_matrix(), *half_matrix())) < 1 << 24


def test_exam_matrix__has_the_quick_cases_and_each_layer_at_its_own_sizes():
    cases = set(exam_matrix(SHAPES[name] for name in EXAM_SHAPES))
    own = cases - set(quick_matrix())

    assert set(quick_matrix()) < cases
    assert {(case.E, case.H, case.I, case.quant) for case in own} == {
        (SHAPES[name].E, SHAPES[name].H, SHAPES[name].I, SHAPES[name].quant) for name in EXAM_SHAPES
    }
    assert max(case.M for case in own) * 4 > 1 << 15
    assert {case.E for case in own} >= {32, 256}
    assert any(case.mask == "ep" and case.M > 255 for case in own)


@pytest.mark.parametrize("case", half_matrix()[::7], ids=str)
def test_half_matrix__is_answered_by_the_rounding_reference(case, exam):
    report = check(find("torch-staged"), exam(case))

    assert not report.problems, str(report)


@pytest.mark.parametrize("case", [case for case in half_matrix() if case.data == "inf"], ids=str)
def test_check__infinity_must_not_leak_and_its_own_token_is_left_open(case, exam):
    prepared = exam(case)

    assert not prepared.reference[1].isfinite().all()
    assert not check(find("torch-staged"), prepared).problems
    assert not check(MUTANTS["swallowed_nan"].implementation, prepared).problems
    assert check(MUTANTS["leaked_nan"].implementation, prepared).problems


class Forgetful:
    """Right in its first answer and in that for other tokens, then off by a factor in one element."""

    factor = 1.0

    def __init__(self):
        self.calls = 0

    def __call__(self, problem):
        self.calls += 1
        answer = staged(problem)
        if self.calls > 2:
            answer[1, :1] *= self.factor
        return answer


@pytest.mark.parametrize(
    ("factor", "told"),
    [(1.0, []), (1.0 + 2**-7, ["a rerun gave other bits"]), (float("nan"), ["a rerun gave other bits", "a rerun: 1 elements"])],
)
def test_check__a_rerun_with_wrong_values_is_told_as_that(exam, monkeypatch, factor, told):
    layer = Forgetful()
    layer.factor = factor
    monkeypatch.setattr(Implementation, "load", lambda _: layer)

    problems = check(Implementation(name="forgetful", target="a:b"), exam(LayerCase(M=33, dtype="bfloat16"))).problems

    assert len(problems) == len(told)
    assert all(map(str.startswith, problems, told))
