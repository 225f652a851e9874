"""From rows of a query to series with their changes, marks, spread and creep.

Where a series changed its level is told by Apache Otava's algorithm (E-divisive with t-tests, known as Hunter).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from otava.analysis import compute_change_points

from perfgate.history.trends import (
    LevelChange,
    LevelSeries,
    SeriesPoint,
    SeriesSubject,
    compare_runners,
    find_marks,
    measure_creep,
    measure_loss,
    tell_differences,
)
from perfgate.metrics import METRICS

MAX_P_VALUE = 0.001
"""Otava's own default: about one false change in a thousand points where nothing happens."""

WINDOW = 50
"""Otava looks at so many points at a time; a level that lasts longer is found all the same."""

MIN_AFTER = 3
"""One session that stalled is no new level: a change is told once so many points lie behind it."""


class LevelRow(NamedTuple):
    """One level as the query returns it, in this order of columns; a tuple because there are many."""

    scenario: str
    hardware: str
    workload: str
    metric: str
    unit: str
    better: str
    session: str
    at: datetime
    value: float
    commit: str
    runner: str
    release: str
    repository: str = ""
    pull_request: str = ""
    run: str = ""


Environments = Mapping[str, Mapping[str, str]]
"""Facts of machine and software by session."""

Margins = Mapping[tuple[str, str, str], float]
"""Margins by scenario, hardware and metric."""


def assemble_series(rows: Iterable[LevelRow], environments: Environments, margins: Margins) -> tuple[LevelSeries, ...]:
    """Group rows into series, each in the order of time; known metrics come first, in the order of every other output."""
    ranks = {name: rank for rank, name in enumerate(METRICS)}

    # Another unit is another series: an imported name may have changed its tool on the way.
    def place(row: LevelRow) -> tuple[str, str, str, int, str, str]:
        return (row.scenario, row.hardware, row.workload, ranks.get(row.metric, len(ranks)), row.metric, row.unit)

    ordered = sorted(rows, key=lambda row: (*place(row), row.at, row.session))
    return tuple(_assemble(list(group), environments, margins) for _, group in groupby(ordered, key=place))


def _assemble(rows: list[LevelRow], environments: Environments, margins: Margins) -> LevelSeries:
    subject = _describe(rows[-1])
    points = tuple(
        SeriesPoint(
            session=row.session,
            at=row.at,
            value=row.value,
            commit=row.commit,
            runner=row.runner,
            release=row.release,
            repository=row.repository,
            pull_request=row.pull_request,
            run=row.run,
            environment=environments.get(row.session, {}),
        )
        for row in rows
    )
    changes = find_changes(points, subject.better)
    since = changes[-1].index if changes else 0
    margin_ratio = margins.get((subject.scenario, subject.hardware, subject.metric), _usual_margin(subject.metric))
    return LevelSeries(
        subject=subject,
        points=points,
        changes=changes,
        marks=tuple(find_marks(points)),
        spread=compare_runners(points[since:]),
        creep=measure_creep(points, subject.better, margin_ratio),
    )


def _describe(row: LevelRow) -> SeriesSubject:
    known = METRICS.get(row.metric)
    return SeriesSubject(
        scenario=row.scenario,
        hardware=row.hardware,
        workload=row.workload,
        metric=row.metric,
        title=known.title if known else row.metric,
        unit=known.unit if known else row.unit,
        better=str(known.better) if known else row.better,
    )


def _usual_margin(metric: str) -> float | None:
    return METRICS[metric].margin_ratio if metric in METRICS else None


def find_changes(points: Sequence[SeriesPoint], better: str) -> tuple[LevelChange, ...]:
    """Find the points from which on the level of a series is another."""
    # A list: otava 0.8 fails on some long arrays.
    values = [point.value for point in points]
    found, _ = compute_change_points(values, window_len=WINDOW, max_pvalue=MAX_P_VALUE)
    return tuple(
        _describe_change(
            points, better, int(one.index), (float(one.stats.mean_1), float(one.stats.mean_2)), float(one.stats.pvalue)
        )
        for one in found
        if len(points) - one.index >= MIN_AFTER
    )


def _describe_change(
    points: Sequence[SeriesPoint], better: str, index: int, levels: tuple[float, float], p_value: float
) -> LevelChange:
    before, after = levels
    loss = measure_loss(before, after, better)
    return LevelChange(
        index=index,
        at=points[index].at,
        before=before,
        after=after,
        ratio=after / before - 1 if before else 0.0,
        p_value=p_value,
        is_worse=None if loss is None else loss > 0,
        commits=(points[index - 1].commit, points[index].commit),
        notes=tuple(_explain(points[:index], points[index:])),
    )


def _explain(earlier: Sequence[SeriesPoint], later: Sequence[SeriesPoint]) -> list[str]:
    """What else changed there: a level may follow the machine instead of the code."""
    last, first = earlier[-1], later[0]
    notes = []
    if last.commit and last.commit == first.commit:
        notes.append("the same commit on both sides: the code is not the cause")
    # Runners that take turns explain nothing.
    if {point.runner for point in earlier[-WINDOW:]}.isdisjoint(point.runner for point in later[:WINDOW]):
        notes.append(f"runner {last.runner or '(unknown)'} -> {first.runner or '(unknown)'}")
    return [*notes, *tell_differences(last.environment, first.environment)]
