"""The suite must be able to fail: every wrong kernel is killed, every tolerance is one that some wrong kernel breaks."""

from dataclasses import fields, replace
from math import isfinite
from statistics import median

import pytest

from perfgate_moe.exam.accuracy import TOLERANCES, Tolerance
from perfgate_moe.exam.cases import LayerCase, quick_matrix, sixteen_bit_matrix
from perfgate_moe.exam.conformance import check
from perfgate_moe.exam.implementations import find
from perfgate_moe.exam.mutants import MUTANTS

LIMITS = [
    (dtype, field.name)
    for dtype in TOLERANCES
    for field in fields(Tolerance)
    if isfinite(getattr(TOLERANCES[dtype], field.name))
]
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
GAINS = ("row_gain", "gain")
WIDE = {dtype: LayerCase(E=4, k=2, H=1056, I=1056, M=64, dtype=dtype, data="flat") for dtype in ("float16", "bfloat16")}

# A 16-bit layer has the same operands either way.
OF_FLOAT32 = {"split_operands"}

SIXTEEN_BITS = "E=8,k=4,H=64,I=96,M=33,dtype=bfloat16"
KILLS = {
    "E=8,k=4,H=64,I=104,M=33,dtype=bfloat16": "skipped_down_tail",
    "E=8,k=4,H=64,I=96,M=257,dtype=bfloat16": "zero_rows_from_255",
    f"{SIXTEEN_BITS},scaling=2.5": "scaling_omitted",
    f"{SIXTEEN_BITS},routing=duplicate": "collapsed_duplicates",
    f"{SIXTEEN_BITS},weights=odd": "weighted_twice",
    f"{SIXTEEN_BITS},activation=silu,bias=off,on_input=1": "weight_on_wrong_side",
    f"{SIXTEEN_BITS},activation=silu,bias=off,scaling=2.5,on_input=1": "scaling_lost_on_input",
    f"{SIXTEEN_BITS},activation=silu,data=cancel": "pairwise_sums_in_16_bits",
    "E=8,k=4,H=64,I=96,M=33,dtype=float16,activation=silu,data=cancel": "pairwise_sums_in_16_bits",
    f"{SIXTEEN_BITS},mask=all,data=nan": "nan_of_a_padded_row",
    str(WIDE["bfloat16"]): "rounded_alpha",
    str(WIDE["float16"]): "rounded_alpha",
    "E=264,k=10,H=64,I=32,M=48,dtype=bfloat16,activation=silu,routing=same,bias=off": "capacity_of_twice_the_mean",
    "E=8,k=4,H=32,I=32,M=16400,dtype=bfloat16": "slots_in_16_bits",
}
"""Of each case of the 16-bit matrix a wrong kernel that it kills."""


def unbroken_limits(tolerances):
    """Limits that no mutant's error crosses, as (dtype, name)."""
    return [(dtype, name) for dtype, name in LIMITS if not crossed(dtype, name, tolerances[dtype])]


def crossed(dtype, name, tolerance):
    return getattr(crossed.errors[dtype], name) > getattr(tolerance, name)


@pytest.fixture(scope="module", autouse=True)
def measured(exam):
    """Errors of the subtle mutants, once; gains are of a layer wide enough."""
    errors = {dtype: check(MUTANTS[name].implementation, exam(case)).errors for dtype, (name, case) in SUBTLE.items()}
    wide = {dtype: check(MUTANTS["cut_off_answer"].implementation, exam(case)).errors for dtype, case in WIDE.items()}
    crossed.errors = {
        dtype: replace(found, **{name: getattr(wide.get(dtype, found), name) for name in GAINS})
        for dtype, found in errors.items()
    }


def test_mutants__each_names_its_defect():
    assert len(MUTANTS) > 80
    assert all(mutant.defect.endswith(".") for mutant in MUTANTS.values())


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if not mutant.is_coarse])
def test_suite__kills_mutant(name, exam):
    """In a kernel that computes bfloat16 alone, too, as most that are written do."""
    dtype = "float32" if name in OF_FLOAT32 else "bfloat16"
    cases = [case for case in quick_matrix() if (case.quant, case.dtype) == (MUTANTS[name].quant, dtype)]
    killer = next((case for case in cases if check(MUTANTS[name].implementation, exam(case)).problems), None)

    assert killer is not None, f"{name} ({MUTANTS[name].defect}) passes every case of the quick matrix"


@pytest.mark.parametrize("text", [str(case) for case in sixteen_bit_matrix()])
def test_sixteen_bit_matrix__each_case_is_there_for_a_mutant(text, exam):
    assert check(MUTANTS[KILLS[text]].implementation, exam(LayerCase.parse(text))).problems


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.is_coarse])
def test_suite__a_coarse_mutant_is_within_the_limits_and_told_by_its_error_over_a_sound_layers(name, exam):
    cases = [LayerCase(M=count, H=128, I=192, dtype="bfloat16") for count in (16, 33, 65)]
    both = (MUTANTS[name].implementation, find("torch-staged"))
    coarse, sound = ([check(each, exam(case)) for case in cases] for each in both)

    assert [str(report) for report in coarse if report.problems] == []
    ratios = [ours.errors.relative / theirs.errors.relative for ours, theirs in zip(coarse, sound, strict=True)]
    assert median(ratios) > 1.05


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
