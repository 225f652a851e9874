"""Which leading runs of an arm measured a server that was still warming up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

from perfgate.core import Run
from perfgate.metrics import METRICS

# A sign of cold and how far a run must lie below the slowest later one, as a factor. Throughput moves little where the load
# generator sets the pace, so latency speaks too, with a factor that noise does not reach.
SIGNS = {"request_per_s": 1.15, "mean_e2e_ms": 1.5}
# It must also lie this many times the spread of the later runs below them, or the arm is merely noisy.
SPREADS = 3.0
MIN_LATER = 2
_WORDS = {"request_per_s": ("", "requests/s"), "mean_e2e_ms": ("mean E2E ", "ms")}
_SUFFIX = re.compile(r"\.(?:txt|log|out|jsonl?|gz)(?=$|\.)")
# What readers append to the file's name where it holds several runs.
_LINE = re.compile(r":(\d{1,9})(?: \([^()]*\))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRun:
    """A run that was slower than every later one of its arm: `value` of `metric` against `level`, the slowest of those."""

    run: Run
    metric: str
    value: float
    level: float

    @property
    def figures(self) -> str:
        """The two values, for example "1.48 requests/s against 3.22"."""
        what, unit = _WORDS[self.metric]
        return f"{what}{self.value:.2f} {unit} against {self.level:.2f}"


def order_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Sort runs by file name, numbers as numbers, then by place in the file: the order of arguments means nothing."""
    return tuple(sorted(runs, key=_place))


def _place(run: Run) -> tuple[list[str | int], int, str]:
    place = _LINE.search(run.source)
    file = run.source[: place.start()] if place else run.source
    return _natural(_SUFFIX.sub("", file)), int(place[1]) if place else 0, run.source


def _natural(text: str) -> list[str | int]:
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", text))]


def split_cold(runs: Sequence[Run]) -> tuple[tuple[ColdRun, ...], tuple[Run, ...]]:
    """Split an arm's runs, in order, into the leading cold ones and the rest.

    The longest lead is cold in which every run lies below all later runs by the sign's factor and by three times their spread,
    and which leaves more runs than it takes, at least two. An arm that would be left with less keeps every run.
    """
    for lead in range((len(runs) - 1) // 2, 0, -1):
        later = runs[lead:]
        if len(later) < MIN_LATER:
            continue
        found = [cold for run in runs[:lead] if (cold := find_cold(run, later))]
        if len(found) == lead:
            return tuple(found), tuple(later)
    return (), tuple(runs)


def find_slow(runs: Sequence[Run]) -> tuple[ColdRun, ...]:
    """Return the runs that would be cold if they came first: they stay in the comparison, and somebody should know."""
    found = (find_cold(run, [*runs[:index], *runs[index + 1 :]]) for index, run in enumerate(runs))
    return tuple(slow for slow in found if slow)


def find_cold(run: Run, others: Sequence[Run]) -> ColdRun | None:
    """Compare a run with others by each sign in turn; None when it is not far below them."""
    for metric, factor in SIGNS.items():
        row = METRICS[metric]
        if metric not in run.values or not others or any(metric not in other.values for other in others):
            continue
        badness = {row.badness(other.values[metric]): other.values[metric] for other in others}
        gap = row.badness(run.values[metric]) - max(badness)
        if gap > max(log(factor), SPREADS * (max(badness) - min(badness))):
            return ColdRun(run=run, metric=metric, value=run.values[metric], level=badness[max(badness)])
    return None
