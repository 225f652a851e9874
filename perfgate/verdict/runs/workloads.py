"""Which runs did the same work, by the facts that their output carries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from perfgate.core import Arm, Run
from perfgate.errors import InputError, WorkloadMismatchError
from perfgate.metrics import METRICS

Facts = Mapping[str, str | int | float]
# Fewer equal numbers than this may be chance; two runs never agree in all digits of so many.
MIN_EQUAL_VALUES = 5


def find_groups(arms: Mapping[Arm, Sequence[Run]]) -> tuple[list[tuple[Facts, dict[Arm, list[Run]]]], list[str]]:
    """Group the runs of both arms by the facts that all of them carry; return the groups and what could not be checked.

    Raise WorkloadMismatchError naming both values when one arm did work that the other did not.
    """
    runs = [run for given in arms.values() for run in given]
    everywhere = set(runs[0].workload).intersection(*(run.workload for run in runs)) if runs else set()
    somewhere = set().union(*(run.workload for run in runs))
    keys = sorted(everywhere)
    grouped: dict[tuple[str, ...], dict[Arm, list[Run]]] = {}
    for arm, given in arms.items():
        for run in given:
            facts = tuple(show_fact(run.workload[key]) for key in keys)
            grouped.setdefault(facts, {Arm.BASE: [], Arm.CANDIDATE: []})[arm].append(run)
    for facts, members in sorted(grouped.items(), key=lambda item: item[0]):
        for arm, other in ((Arm.BASE, Arm.CANDIDATE), (Arm.CANDIDATE, Arm.BASE)):
            if not members[other]:
                raise WorkloadMismatchError(_describe(keys, facts, arm, members[arm][0], arms[other]))
    groups = [(_pick(members[Arm.BASE][0], keys), members) for _, members in sorted(grouped.items(), key=lambda item: item[0])]
    unchecked = [f"not every run tells its {key}, so it was not compared" for key in sorted(somewhere - everywhere)]
    return groups, unchecked


def _pick(run: Run, keys: Sequence[str]) -> Facts:
    return {key: run.workload[key] for key in keys}


def _describe(keys: Sequence[str], facts: tuple[str, ...], arm: Arm, run: Run, others: Sequence[Run]) -> str:
    """Name the facts in which `run` differs from the most similar run of the other arm."""
    if not others:
        return f"{run.source}: the other arm has no run; give at least one file per arm"

    def differing(other: Run) -> list[str]:
        return [key for key, fact in zip(keys, facts, strict=True) if show_fact(other.workload[key]) != fact]

    nearest = min(others, key=lambda other: len(differing(other)))
    there = arm.other
    pairs = (
        f"{key} {show_fact(run.workload[key])} in {arm}, {show_fact(nearest.workload[key])} in {there}"
        for key in differing(nearest)
    )
    return (
        f"different workloads are no comparison: {'; '.join(pairs)} ({run.source}, {nearest.source}); measure both arms alike"
    )


def show_fact(fact: str | float) -> str:
    """Write a fact so that 64 and 64.0 are the same."""
    return fact if isinstance(fact, str) else f"{fact:.12g}"


def find_repeats(runs: Sequence[Run]) -> None:
    """Raise InputError when the same measurement was given twice: it would pass for agreement."""
    seen: dict[tuple[object, ...], Run] = {}
    for run in runs:
        if len(run.values) < MIN_EQUAL_VALUES:
            continue
        key = (run.duration_s, *sorted(run.values.items()))
        if key in seen:
            raise InputError(f"{run.source}: the same run as {seen[key].source}; a run counts once, so leave one of them out")
        seen[key] = run


# A sign of cold and how far a run must lie below the slowest later one, as a factor. Throughput moves little where the load
# generator sets the pace, so latency is evidence too, with a factor that noise does not reach.
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
    """Return the runs that would be cold if they came first: they stay in the comparison and are reported."""
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
