"""A history as lines and tables for a terminal or a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from perfgate.history.trends import History, Ledger, LevelChange, LevelSeries, Mark
from perfgate.metrics import METRICS
from perfgate.report.escape import plain
from perfgate.report.table import Table
from perfgate.report.words.wording import MISSING, percent

BARS = (
    "\N{LOWER ONE EIGHTH BLOCK}\N{LOWER ONE QUARTER BLOCK}\N{LOWER THREE EIGHTHS BLOCK}\N{LOWER HALF BLOCK}"
    "\N{LOWER FIVE EIGHTHS BLOCK}\N{LOWER THREE QUARTERS BLOCK}\N{LOWER SEVEN EIGHTHS BLOCK}\N{FULL BLOCK}"
)
BAR_POINTS = 20
HASH_DIGITS = 9
UNKNOWN = "(unknown)"


def tabulate_series(series: Sequence[LevelSeries]) -> Table:
    """A row for each series: how far it is from its anchor, where it stands, how it got there, and how its runners differ."""
    header = ("metric", "since anchor", "scenario", "now", "trend", "changes", "sessions", "runners differ", "hardware")
    places = Counter(
        place for place, _ in {((one.subject.scenario, one.subject.hardware), one.subject.workload) for one in series}
    )
    return Table(header=header, rows=[_row(one, places) for one in series], words=(0, 2, 8))


SENSES = {True: "worse", False: "better", None: "other"}
"""What a change of level is, by whether it is worse; None where nothing says which way is good."""
RANKED = ("worse", "other", "better")


def rank_series(series: LevelSeries) -> int:
    """The place of a series among others: over its limit, then worse, moved where nothing says which way is good, better."""
    if series.creep and series.creep.is_over:
        return 0
    return (*RANKED, "").index(find_sense(series)) + 1


def _row(series: LevelSeries, places: Mapping[tuple[str, str], int]) -> tuple[str, ...]:
    """The workload is named only where a scenario had several: its file was edited, so its numbers do not compare."""
    subject = series.subject
    is_plain = places[subject.scenario, subject.hardware] == 1
    creep = MISSING
    if series.creep:
        creep = f"{percent(series.creep.ratio)}{' OVER THE LIMIT' if series.creep.is_over else ''} ({series.creep.anchor})"
    return (
        subject.title,
        creep,
        subject.scenario if is_plain else f"{subject.scenario} ({subject.workload})",
        show_value(series, series.level),
        draw_bars([point.value for point in series.points]),
        str(len(series.changes)),
        str(len(series.points)),
        percent(series.spread.ratio).lstrip("+") if series.spread else MISSING,
        subject.hardware,
    )


def show_value(series: LevelSeries, value: float) -> str:
    """A value with its unit; of a metric that perfgate does not know, four digits of it."""
    known = METRICS.get(series.subject.metric)
    number = f"{value:,.{known.decimals}f}" if known else f"{value:.4g}"
    return f"{number} {series.subject.unit}".rstrip()


def draw_bars(values: Sequence[float]) -> str:
    """The newest values as bars, from the lowest to the highest of them."""
    shown = values[-BAR_POINTS:]
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)


def describe_events(series: LevelSeries) -> Iterator[str]:
    """The changes of level and of the environment, a line each, in the order of time."""
    found: list[LevelChange | Mark] = [*series.changes, *series.marks]
    events = sorted(found, key=lambda event: (event.index, isinstance(event, Mark)))
    for event in events:
        day = f"{event.at:%Y-%m-%d}"
        yield f"{day}  {describe_change(series, event) if isinstance(event, LevelChange) else describe_mark(event)}"


def describe_news(series: LevelSeries) -> str:
    """A creep over its limit, or the newest change of level, as one line; empty where nothing moved."""
    where = f"{series.subject.scenario} on {series.subject.hardware}"
    moved = f"{series.changes[-1].at:%Y-%m-%d}" if series.changes else ""
    if series.creep and series.creep.is_over:
        since = f"{series.creep.anchor}{moved and f', last change {moved}'}"
        return plain(f"{series.subject.title} {percent(series.creep.ratio)} (worse) since {since}, over its limit: {where}")
    if not moved:
        return ""
    last = series.changes[-1]
    return plain(f"{series.subject.title} {percent(last.ratio)} ({_name_sense(last)}) since {moved}: {where}")


def find_sense(series: LevelSeries) -> str:
    """What its news is: worse, better, or other where nothing says which way is good; empty where nothing moved."""
    if series.creep and series.creep.is_over:
        return "worse"
    return SENSES[series.changes[-1].is_worse] if series.changes else ""


def describe_change(series: LevelSeries, change: LevelChange) -> str:
    """Say what changed, between which commits, and what else changed there."""
    text = (
        f"{series.subject.title} {percent(change.ratio)} ({_name_sense(change)}):"
        f" {show_value(series, change.before)} -> {show_value(series, change.after)}, {name_commits(change)}"
    )
    return plain("; ".join((text, *change.notes)))


def _name_sense(change: LevelChange) -> str:
    if change.is_worse is None:
        return "higher" if change.ratio > 0 else "lower"
    return SENSES[change.is_worse]


def name_commits(change: LevelChange) -> str:
    """Name the commits between which the level changed."""
    before, after = ((commit[:HASH_DIGITS] or UNKNOWN) for commit in change.commits)
    if before == after:
        return f"commit {after}"
    return f"after commit {before}, by {after}"


def describe_mark(mark: Mark) -> str:
    """Say how the environment of a runner changed."""
    runner = f"runner {mark.runner}: " if mark.runner else ""
    return plain(f"environment: {runner}{'; '.join(mark.differences)}")


def describe_ledger(ledger: Ledger) -> Iterator[str]:
    """Say how often the gate failed code, and how often wrongly."""
    yield (
        f"sessions of two builds: {ledger.judged}; ended in REGRESSION: {ledger.regressions};"
        f" verdicts called a false alarm: {ledger.false_alarms}"
    )
    if ledger.equal_arms:
        yield (
            f"sessions of equal arms: {ledger.equal_arms};"
            f" ended in REGRESSION, which is false by construction: {ledger.alarms_of_equal_arms}"
        )
    for one in ledger.overrides:
        yield plain(
            f"{one.at:%Y-%m-%d}  {one.session} {one.scenario} on {one.hardware}: {one.outcome} ruled {one.ruling}"
            f" by {one.by or UNKNOWN}: {one.reason}"
        )


def tabulate_spending(history: History) -> Table:
    """Machine time by hardware and month."""
    rows = [
        (
            f"{one.hardware} {one.month}",
            str(one.sessions),
            f"{one.minutes:,.1f}",
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(one.outcomes.items())),
        )
        for one in history.spending
    ]
    return Table(header=("machine time", "sessions", "minutes", "outcomes"), rows=rows, words=(0, 3))
