"""Where a series changed its level: Apache Otava's algorithm (E-divisive with t-tests, known as Hunter)."""

from __future__ import annotations

from collections.abc import Sequence

from otava.analysis import compute_change_points

from perfgate.history.trends import LevelChange, SeriesPoint, measure_loss, tell_differences

MAX_P_VALUE = 0.001
"""Otava's own default: about one false change in a thousand points where nothing happens."""

WINDOW = 50
"""Otava looks at so many points at a time; a level that lasts longer is found all the same."""

MIN_AFTER = 3
"""One session that stalled is no new level: a change is told once so many points lie behind it."""


def find_changes(points: Sequence[SeriesPoint], better: str) -> tuple[LevelChange, ...]:
    """Find the points from which on the level of a series is another."""
    # A list: otava 0.8 fails on some long arrays.
    values = [point.value for point in points]
    found, _ = compute_change_points(values, window_len=WINDOW, max_pvalue=MAX_P_VALUE)
    return tuple(
        _describe(points, better, int(one.index), (float(one.stats.mean_1), float(one.stats.mean_2)), float(one.stats.pvalue))
        for one in found
        if len(points) - one.index >= MIN_AFTER
    )


def _describe(
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
