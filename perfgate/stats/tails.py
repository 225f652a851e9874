"""The slow end of many latencies in single numbers: expected shortfall and a steady quantile."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from perfgate.stats import special

Samples = npt.NDArray[np.float64]

# Beyond so many standard deviations of the Beta weights nothing is left that a double could add.
_REACH_SD = 12.0
# How many window sizes are remembered; a session has one or a few.
_SIZES = 64


def average_worst(samples: npt.ArrayLike, share: float = 0.05) -> float:
    """Return the mean of the largest `share` of `samples` (expected shortfall; ES5 at 0.05).

    The boundary sample counts with the fraction that is left, so the value moves smoothly with every sample in the tail:
    Acerbi and Tasche, "On the coherence of expected shortfall", Journal of Banking and Finance 26 (2002).
    """
    values = _check(samples)
    wanted = share * values.size
    whole = ceil(wanted)
    largest = np.sort(np.partition(values, values.size - whole)[values.size - whole :])
    weights = np.ones(whole)
    weights[0] -= whole - wanted
    return float(largest @ weights / wanted)


def estimate_quantile(samples: npt.ArrayLike, probability: float) -> float:
    """Return the Harrell-Davis quantile: a weighted mean of all order statistics, steadier than any single one.

    Harrell and Davis, "A new distribution-free quantile estimator", Biometrika 69 (1982): sample i of n weighs
    I(i/n) - I((i-1)/n) with I the incomplete beta function at ((n+1)p, (n+1)(1-p)). Only the samples near the quantile weigh
    anything, so only those are sorted and weighed.
    """
    values = _check(samples)
    first, weights = _weigh(values.size, probability)
    near: Samples = np.sort(_select(values, first, first + weights.size))
    return float(near @ weights)


@lru_cache(maxsize=_SIZES)
def _weigh(count: int, probability: float) -> tuple[int, Samples]:
    """Return the first order statistic that weighs anything and the weights from there on; windows of a session share them."""
    centre, reach = probability * count, _REACH_SD * sqrt(probability * (1 - probability) * count) + _REACH_SD
    first, last = max(int(centre - reach), 0), min(int(centre + reach) + 1, count)
    edges = np.arange(first, last + 1) / count
    weights: Samples = np.diff(special.betainc((count + 1) * probability, (count + 1) * (1 - probability), edges))
    return first, weights / weights.sum()


def _select(values: Samples, first: int, last: int) -> Samples:
    """Return the order statistics first..last-1 in any order, without sorting the rest."""
    cuts = sorted({first, last - 1})
    selected: Samples = np.partition(values, cuts)[first:last]
    return selected


def _check(samples: Any) -> Samples:
    values: Samples = np.asarray(samples, dtype=np.float64).ravel()
    if not values.size or not np.isfinite(values).all():
        raise ValueError("a tail needs at least one sample, all of them finite")
    return values
