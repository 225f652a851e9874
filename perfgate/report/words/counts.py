"""What counters say, in a line: those that fail first, those that are the same last."""

from __future__ import annotations

from collections.abc import Sequence

from perfgate.core import Count, CountState
from perfgate.report.table import Table
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import format_percent
from perfgate.verdict.counters import COUNTERS, describe_count, list_counters

_TITLES = {
    CountState.LOST: "lost: ",
    CountState.CHANGED: "changed: ",
    CountState.UNTOLD: "",
    CountState.SCATTERED: "",
    CountState.SAME: "the same in both arms: ",
}
UNKNOWN = "not reported"
_RESULTS = {CountState.SCATTERED: "varies", CountState.UNTOLD: UNKNOWN}


def describe_counts(counts: Sequence[Count]) -> str:
    """Say what became of all counters; empty where there is none."""
    groups = ((state, [describe_count(count) for count in counts if count.state is state]) for state in _TITLES)
    # A group without a title consists of whole sentences.
    told = (f"{_TITLES[state]}{(', ' if _TITLES[state] else '; ').join(clauses)}" for state, clauses in groups if clauses)
    return "; ".join(told)


def is_notable(counts: Sequence[Count]) -> bool:
    """Whether a reader has to be told: anything but counters that are the same or scatter."""
    return any(count.state not in (CountState.SAME, CountState.SCATTERED) for count in counts)


def tabulate_counts(counts: Sequence[Count], scenario: Scenario) -> Table:
    """Every counter that the scenario can move; one that no window tells is named too, without a number, if it is missed."""
    found = {count.counter: count for count in counts}
    header = ("counter", "base", "candidate", "change", "fails beyond", "result")
    shown = (one.name for one in list_counters(scenario) if one.name in found or one.is_missed(scenario))
    return Table(header=header, rows=[_row(name, found.get(name)) for name in shown])


def _row(name: str, count: Count | None) -> tuple[str, ...]:
    counter = COUNTERS[name]
    line = format_percent(counter.fails_beyond, is_signed=True) if counter.fails_beyond else "any loss"
    if count is None:
        return counter.title, UNKNOWN, UNKNOWN, "", line, "not known: no window reports it"
    levels = (UNKNOWN if level is None else counter.write(level) for level in (count.base, count.candidate))
    change = "" if count.change is None or count.base == 0 else format_percent(count.change, is_signed=True)
    return counter.title, *levels, change, line, _RESULTS.get(count.state, count.state.value)
