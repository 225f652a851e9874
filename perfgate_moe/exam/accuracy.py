"""How far an answer is from the oracle, and how far it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Distances of an answer from the float64 oracle; each is 0 for a perfect one.

    `relative` is |d|_F / |ref|_F; `angle` is 1 - cos(answer, ref); `worst_element` is the largest |d| over the root mean square
    of its own reference row, so that one wrong element in a large answer still shows.
    """

    relative: float
    angle: float
    worst_element: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The largest distances that a sound kernel of a dtype may show over the whole layer.

    An infinite limit is never crossed. The mutation tests demand that each limit be crossed by some wrong kernel.
    """

    relative: float
    angle: float
    worst_element: float

    def violations(self, errors: Errors) -> tuple[str, ...]:
        """Say which distances are too large (or no number)."""
        pairs = ((name, getattr(errors, name), getattr(self, name)) for name in ("relative", "angle", "worst_element"))
        return tuple(f"{name} error {value:.3g} > {limit:.3g}" for name, value, limit in pairs if not value <= limit)


# Rounding to nearest costs 2^-9 (bf16) or 2^-12 (fp16) per stored intermediate at worst; three roundings on the way
# (intermediate, slot, answer) add in quadrature. The limits sit between what the staged reference shows over the matrix and
# what a kernel that accumulates in its storage type shows: tests/kernels/test_mutants.py holds them from both sides.
# Rounding activations to 8 bits has steps of 6 %: a sum that is right to 2^-13 still moves an intermediate value over the edge
# of one now and then, or the peak of its group, and every edge counts. Kernels that round the intermediate straight from
# float32 differ from those that store it in 16 bits first by 0.7 to 1.5 %; both are sound. A scale taken from the wrong place,
# or for a whole token instead of a group, moves the answer by 4 % and more.
TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(relative=4e-6, angle=1e-11, worst_element=4e-5),
        "float16": Tolerance(relative=5e-4, angle=1.25e-7, worst_element=6e-3),
        "bfloat16": Tolerance(relative=4.2e-3, angle=8.9e-6, worst_element=4e-2),
        "fp8": Tolerance(relative=2e-2, angle=2e-4, worst_element=0.25),
    },
)


def measure(answer: Tensor, reference: Tensor) -> Errors:
    """Distances of `answer` [n, H] from the float64 `reference` [n, H]; rows whose reference is zero must be zero."""
    difference = answer.double() - reference
    norm = reference.norm()
    row_rms = reference.square().mean(dim=1, keepdim=True).sqrt()
    per_element = torch.where(difference == 0, 0.0, difference.abs() / row_rms)
    return Errors(
        relative=_ratio(difference.norm(), norm),
        angle=_angle(answer.double(), reference),
        worst_element=float(per_element.max()) if per_element.numel() else 0.0,
    )


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
