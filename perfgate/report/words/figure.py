"""An interval of a judgement as a row of characters, for tables in comments and on terminals."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, log1p

from perfgate.core import Better, Judgement
from perfgate.metrics import METRICS

CELLS_PER_MARGIN = 5
# The picture spans two margins of gain to three of loss, so that rows of different metrics can be read against each other.
ZERO = 2 * CELLS_PER_MARGIN
MARGIN = ZERO + CELLS_PER_MARGIN
WIDTH = 5 * CELLS_PER_MARGIN + 1

LEGEND = (
    "`(==*==)` is the estimate with its 90 % interval (two one-sided 95 % bounds), `0` no change, `!` where "
    "the metric fails from, `|` its margin; worse is to the right. REGRESSION: the estimate is beyond `!`. PASS: it is within "
    "half the margin, and the interval ends before `|`."
)


def draw_interval(judgement: Judgement) -> str:
    """Draw the interval in WIDTH characters, all in units of the metric's margin; empty without a finite interval."""
    bounds = worse_bounds(judgement)
    if bounds is None:
        return ""
    low, middle, high = (round(bound / log1p(judgement.margin_ratio) * CELLS_PER_MARGIN) + ZERO for bound in bounds)
    cells = ["."] * WIDTH
    for index in range(max(low, 0), min(high, WIDTH - 1) + 1):
        cells[index] = "="
    cells[ZERO], cells[MARGIN] = "0", "|"
    if judgement.fails_from is not None:
        line = round(log1p(judgement.fails_from) / log1p(judgement.margin_ratio) * CELLS_PER_MARGIN) + ZERO
        cells[min(line, WIDTH - 1)] = "!"
    for index, mark in _ends(low, high):
        cells[index] = mark
    cells[min(max(middle, 0), WIDTH - 1)] = "*"
    return "".join(cells)


def worse_bounds(judgement: Judgement) -> tuple[float, float, float] | None:
    """Put low end, estimate and high end on the log scale where positive is worse; None when one is missing or not finite."""
    ends = (judgement.low, judgement.change, judgement.high)
    found = [value for value in ends if value is not None and isfinite(value) and value > -1]
    if len(found) < len(ends):
        return None
    low, middle, high = (log1p(value) for value in found)
    if METRICS[judgement.metric].better is Better.HIGHER:
        return -high, -middle, -low
    return low, middle, high


def _ends(low: int, high: int) -> Iterator[tuple[int, str]]:
    """Where the brackets stand; an end outside the picture becomes an arrow at its edge."""
    yield (low, "(") if 0 <= low < WIDTH else (0 if low < 0 else WIDTH - 1, "<" if low < 0 else ">")
    yield (high, ")") if 0 <= high < WIDTH else (0 if high < 0 else WIDTH - 1, "<" if high < 0 else ">")
