"""The regularised incomplete beta function: all that Student's t and Harrell-Davis weights need.

It stands here because importing scipy takes longer than judging a session. `tests/rule/test_stats_beta.py` holds it to scipy's
values, twelve digits of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, lgamma, log, log1p, pi, sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
T = TypeVar("T", float, Floats)

# Relative change of a continued fraction at which it has settled, and a number of terms that no verdict comes near.
_SETTLED = 1e-15
_MAX_TERMS = 10_000

# From here on these terms of Stirling's series (DLMF 5.11.1) leave nothing that a double could hold.
_STIRLING_FROM = 16.0
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)

# Below this distance a logarithm of a ratio is taken of its distance from one.
_NEAR = 0.5


def find_incomplete(a: float, b: float, x: float, rest: float) -> float:
    """Return I_x(a, b), the probability that a Beta(a, b) variable stays below `x`; `rest` is 1 - x.

    The continued fraction converges fast below the mean; above it stands I_x(a, b) = 1 - I_(1-x)(b, a), DLMF 8.17.4.
    """
    if x <= 0.0 or rest <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    if x * (a + b + 2) < a + 1:
        return find_front(a, b, x, rest) / _continue(a, b, x, rest, abs)
    return 1.0 - find_front(a, b, x, rest) / _continue(b, a, rest, x, abs)


def find_incomplete_all(a: float, b: float, x: Floats) -> Floats:
    """`find_incomplete` at many points of [0, 1] at once; the shape stays."""
    rest = 1.0 - x
    found = np.where(x > 0, 1.0, 0.0)
    inside = (x > 0) & (rest > 0)
    fronts = np.zeros_like(x)
    fronts[inside] = [find_front(a, b, *pair) for pair in zip(x[inside].tolist(), rest[inside].tolist(), strict=True)]
    is_low = x * (a + b + 2) < a + 1
    low, high = inside & is_low, inside & ~is_low
    found[low] = fronts[low] / _continue(a, b, x[low], rest[low], _find_largest)
    found[high] = 1.0 - fronts[high] / _continue(b, a, rest[high], x[high], _find_largest)
    return found


def find_front(a: float, b: float, x: float, rest: float) -> float:
    """Return x^a (1-x)^b / B(a, b); `rest` is 1 - x.

    Logarithms of large gamma functions would cancel and take digits with them. In Stirling's form (DLMF 5.11.1) they cancel on
    paper, and what is left measures how far x stands from the mean a / (a+b).
    """
    total = a + b
    scale = sqrt(a / total * b / (2 * pi)) * exp(_correct(total) - _correct(a) - _correct(b))
    # The smaller of x and 1 - x tells the distance from the mean with more digits.
    away = x - a / total if x < rest else b / total - rest
    return scale * exp(a * _log_ratio(x, a / total, away) + b * _log_ratio(rest, b / total, -away))


def _log_ratio(value: float, mean: float, away: float) -> float:
    return log1p(away / mean) if abs(away) < _NEAR * mean else log(value / mean)


def _correct(z: float) -> float:
    """What Stirling's leading terms leave of the logarithm of the gamma function."""
    if z < _STIRLING_FROM:
        return lgamma(z) - (z - 0.5) * log(z) + z - 0.5 * log(2 * pi)
    square = z * z
    found = 0.0
    for factor in reversed(_STIRLING):
        found = found / square + factor
    return found / z


def _find_largest(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))


def _continue(a: float, b: float, x: T, rest: T, largest: Callable[[T], float]) -> T:
    """Return the continued fraction of I_x(a, b): what x^a (1-x)^b / B(a, b) is to be divided by.

    It is the even part of DLMF 8.17.22 in the form of Didonato and Morris, "Algorithm 708", ACM Transactions on Mathematical
    Software 18 (1992), whose terms are sums of like signs below the mean where b is large, so that no digits cancel. It is
    evaluated forward, as a product of ratios of successive convergents: Lentz, "Generating Bessel functions in Mie scattering
    calculations using continued fractions", Applied Optics 15 (1976).
    """
    distance = a * rest - b * x + 1.0
    found = a / (a + 1.0) * distance
    # The ratios of numerators and, inverted, of denominators of successive convergents.
    above, below = found, 0.0 * x
    for n in range(1, _MAX_TERMS):
        twice = a + 2 * n
        numerator = (a + n - 1) * (a + b + n - 1) / (twice - 1) * n * (b - n) / (twice - 1) * x * x
        denominator = n + n * (b - n) / (twice - 1) * x + (a + n) / (twice + 1) * (distance + n * (1.0 + rest))
        below = 1.0 / (denominator + numerator * below)
        above = denominator + numerator / above
        step = above * below
        found = found * step
        if largest(step - 1.0) < _SETTLED:
            return found
    raise ArithmeticError(f"the incomplete beta function of {a:g} and {b:g} does not settle")
