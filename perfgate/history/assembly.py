"""From rows of a query to series with their changes, marks, spread and creep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from perfgate.history.changes import find_changes
from perfgate.history.trends import LevelSeries, SeriesPoint, SeriesSubject, compare_runners, find_marks, measure_creep
from perfgate.metrics import METRICS


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
