"""How fast a number of a server rises or falls while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

PER_REQUESTS = 10_000
"""The number of requests that a growth is stated over."""


def find_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes of all pairs of points (x, y), of which two at least differ in x.

    Sen, "Estimates of the regression coefficient based on Kendall's tau", Journal of the American Statistical Association 63
    (1968): up to 29 % of the points may lie anywhere, so that a stalled window or one step of an allocator does not decide it.
    """
    return median((end[1] - begin[1]) / (end[0] - begin[0]) for begin, end in combinations(points, 2) if begin[0] != end[0])


def find_growth(points: Sequence[tuple[float, float]]) -> float:
    """Return the growth over points (requests served, value above zero) of one start, as a factor in PER_REQUESTS requests.

    A gain of the share g of the median value is 1 + g, a loss is 1 / (1 + g): it is above zero, and equal slopes up and down
    are equally far from 1. It is the pace of the start, not a forecast. Requests are counted and not
    hours: both arms serve the same ones, however long a slower arm takes for them, or rests while the other is measured.
    """
    slope = find_slope(points)
    share = abs(PER_REQUESTS * slope / median(value for _, value in points))
    return 1 + share if slope > 0 else 1 / (1 + share)
