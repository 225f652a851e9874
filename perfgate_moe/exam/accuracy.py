"""How far an answer is from the oracle, and how far it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from types import MappingProxyType

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Distances of an answer from the float64 oracle; each is 0 for a perfect one.

    `relative` is |d|_F / |ref|_F; `angle` is 1 - cos(answer, ref); `worst_element` is the largest |d| over the root mean square
    of its own reference row, so that one wrong element in a large answer still shows.

    `gain` is by how much the answer as a whole is too large or too small, |<d, ref>| / |ref|^2, and `row_gain` the root mean
    square of the same over its rows. Roundings fall on each element by themselves and cancel there; a router weight, an alpha
    or a conversion that is a little off moves all elements alike. Both are 0 where too few elements would cancel.
    """

    relative: float
    angle: float
    worst_element: float
    row_gain: float = 0.0
    gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest distances that a sound kernel of a dtype may show over the whole layer.

    An infinite limit is never crossed. The mutation tests demand that each finite limit be crossed by some wrong kernel.
    """

    relative: float
    angle: float
    worst_element: float
    row_gain: float = inf
    gain: float = inf

    def violations(self, errors: Errors) -> tuple[str, ...]:
        """Say which distances are too large (or no number)."""
        pairs = ((one.name, getattr(errors, one.name), getattr(self, one.name)) for one in fields(self))
        return tuple(f"{name} error {value:.3g} > {limit:.3g}" for name, value, limit in pairs if not value <= limit)


# Rounding to nearest costs 2^-9 (bf16) or 2^-12 (fp16) per stored intermediate at worst; three roundings on the way
# (intermediate, slot, answer) add in quadrature. The limits sit between what the staged reference shows over the matrix and
# what a kernel that accumulates in its storage type shows: tests/kernels/exam/test_mutants.py holds them from both sides.
# An 8-bit code is 1/16 to 1/8 of its value away from the next, s = 0.09 in the mean. A value that a sound layer moves by a
# share d crosses to the next code with probability d / s, and is then off by s: its mean square is d * s, and the answer's
# relative error sqrt(d * s), however small d is. Rows of gate and up that are stored in bfloat16 between two kernels, as
# SGLang's are and the oracle's are not, move the product and the peak of its group by d = 0.26 % in the mean: 1.5 %, and more
# where few values carry the answer. On an H200 SGLang's layer shows up to 2.2 % in 48 cases; a fifth is left. One scale
# for a token, and activations that are not rounded at all, move it by 4.4 % and more. An angle is half the square of the
# relative error. The worst element does not follow from the mean: a row that one value carries moves by 1/8 at most, when that
# value crosses, and the largest of its 7,168 elements is sqrt(2 ln 7168) = 4.2 times as far off: 0.53. The H200 shows 0.334 in
# 59 million elements.
# Gains are judged in layers of WIDE columns and ROWS tokens. There layers that round as separate kernels do, SGLang's places
# included, show row gains up to 3.6e-4 and gains up to 9e-5 in bfloat16 over three seeds of three shapes and three kinds of
# data; router weights rounded to bfloat16 show a row gain of 1.4e-3, and alpha in bfloat16 a gain of 5e-4 on data=flat.
TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(relative=4e-6, angle=1e-11, worst_element=4e-5),
        "float16": Tolerance(relative=5e-4, angle=1.25e-7, worst_element=6e-3, row_gain=9e-5, gain=3.1e-5),
        "bfloat16": Tolerance(relative=4.2e-3, angle=8.9e-6, worst_element=4e-2, row_gain=7e-4, gain=2.5e-4),
        "fp8": Tolerance(relative=2.7e-2, angle=3.6e-4, worst_element=0.5),
    },
)


WIDE, ROWS = 1024, 64
"""From how many columns and terms, and from how many rows on, roundings cancel well enough for a gain to say something."""


def measure(answer: Tensor, reference: Tensor, terms: int = 0) -> Errors:
    """Distances of `answer` [n, H] from the float64 `reference` [n, H]; rows whose reference is zero must be zero.

    `terms` is I, of how many terms each expert's row is a sum; gains are measured where both H and I are WIDE.
    """
    difference = answer.double() - reference
    norm = reference.norm()
    row_rms = reference.square().mean(dim=1, keepdim=True).sqrt()
    per_element = torch.where(difference == 0, 0.0, difference.abs() / row_rms)
    is_wide = min(reference.shape[1], terms) >= WIDE and len(reference) >= ROWS
    row_gain, gain = _gains(difference, reference) if is_wide else (0.0, 0.0)
    return Errors(
        relative=_ratio(difference.norm(), norm),
        angle=_angle(answer.double(), reference),
        worst_element=float(per_element.max()) if per_element.numel() else 0.0,
        row_gain=row_gain,
        gain=gain,
    )


def _gains(difference: Tensor, reference: Tensor) -> tuple[float, float]:
    """The root mean square of the rows' gains over rows that are not zero, and the gain of all of them."""
    along, size = (difference * reference).sum(dim=1), reference.square().sum(dim=1)
    along, size = along[size > 0], size[size > 0]
    if not len(size):
        return 0.0, 0.0
    return float((along / size).square().mean().sqrt()), float((along.sum() / size.sum()).abs())


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    return 0.0 if float(numerator) == 0.0 else float(numerator / denominator)


def _angle(answer: Tensor, reference: Tensor) -> float:
    """1 - cos by the half-angle form |a/|a| - b/|b||^2 / 2, which does not cancel for small angles."""
    if torch.equal(answer, reference):
        return 0.0
    gap = answer / answer.norm() - reference / reference.norm()
    return float(gap.square().sum() / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDrift:
    """How far two answers of one kernel to one problem are apart.

    `ulps` is the largest difference in units in the last place of the answer's dtype, `share` the part of the elements that
    differ at all. 0 and 0 for the same bits.
    """

    ulps: float
    share: float

    def exceeds(self, most: AnswerDrift) -> bool:
        """Whether either is more than allowed."""
        return not (self.ulps <= most.ulps and self.share <= most.share)


RELAXED = AnswerDrift(ulps=1.0, share=5e-4)
"""What float32 atomics may show: another order of additions moves a sum over the edge between two 16-bit numbers, rarely."""

CANCELLED = 1 / 256
"""Elements below this share of their row's root mean square are measured in its units: where the terms of a sum cancel, the
order of float32 additions moves what is left by more than its own last place."""


def measure_drift(one: Tensor, other: Tensor) -> AnswerDrift:
    """Difference of two answers [n, H] of one dtype; infinite where one holds NaN or an infinity and the other does not."""
    if not one.numel():
        return AnswerDrift(ulps=0.0, share=0.0)
    differs = ~((one == other) | (one.isnan() & other.isnan()))
    wide = torch.maximum(one.double().abs(), other.double().abs())
    row_rms = other.double().square().mean(dim=1, keepdim=True).sqrt()
    limits = torch.finfo(one.dtype)
    size = torch.maximum(wide, CANCELLED * row_rms).clamp(min=limits.smallest_normal)
    exponent = torch.frexp(size).exponent - 1
    ulps = (one.double() - other.double()).abs() / torch.ldexp(torch.full_like(size, limits.eps), exponent)
    largest = torch.where(differs, ulps.nan_to_num(nan=float("inf"), posinf=float("inf")), 0.0).max()
    return AnswerDrift(ulps=float(largest), share=float(differs.double().mean()))
