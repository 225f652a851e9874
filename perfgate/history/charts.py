"""A series as the geometry of one picture: the dashboard's template only draws what stands here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from perfgate.history.listing import HASH_DIGITS, UNKNOWN, describe_change, describe_mark, show_value
from perfgate.history.trends import Point, Series

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 74, 12, 22, 26
TICKS = 4
COLOURS = 8
"""So many runners have a colour of their own; further ones share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A session. `colour` is that of its runner, from 0."""

    x: float
    y: float
    colour: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A level between two changes."""

    x1: float
    x2: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A moment: a change of level (worse, better, other), a release or a change of the environment."""

    x: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis, in pixels, and its label."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything that is drawn of one series."""

    title: str
    summary: str
    dots: tuple[Dot, ...]
    levels: tuple[Line, ...]
    rules: tuple[Rule, ...]
    ticks: tuple[Tick, ...]
    days: tuple[Tick, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """From values to pixels. Sessions stand side by side in their order, so that a burst of them stays legible."""

    count: int
    low: float
    high: float

    def place_x(self, index: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / max(self.count, 1), 1)

    def place_y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low), 1)


def build_chart(series: Series, runners: Sequence[str]) -> Chart:
    """Lay a series out; `runners` gives each machine the colour that it has in every chart."""
    values = [point.value for point in series.points]
    room = (max(values) - min(values)) * 0.1 or abs(values[0]) * 0.01 or 1.0
    scale = _Scale(count=len(values), low=min(values) - room, high=max(values) + room)
    steps = [scale.low + (scale.high - scale.low) * step / TICKS for step in range(TICKS + 1)]
    return Chart(
        title=f"{series.subject.title}{f', {series.subject.unit}' if series.subject.unit else ''}",
        summary=_summarise(series),
        dots=tuple(
            Dot(
                x=scale.place_x(index),
                y=scale.place_y(point.value),
                colour=runners.index(point.runner) % COLOURS,
                text=_describe_point(series, point),
            )
            for index, point in enumerate(series.points)
        ),
        levels=tuple(_list_levels(series, scale)),
        rules=tuple(_list_rules(series, scale)),
        ticks=tuple(Tick(at=scale.place_y(value), text=f"{value:,.4g}") for value in steps),
        days=_list_days([point.at for point in series.points], scale),
    )


def _summarise(series: Series) -> str:
    text = f"{len(series.points)} sessions, now {show_value(series, series.level)}, {len(series.changes)} changes of level"
    return text.replace(" 1 changes", " 1 change")


def _describe_point(series: Series, point: Point) -> str:
    parts = [
        f"{point.at:%Y-%m-%d %H:%M} UTC",
        show_value(series, point.value),
        f"commit {point.commit[:HASH_DIGITS] or UNKNOWN}",
        f"runner {point.runner or UNKNOWN}",
        *([f"release {point.release}"] if point.release else []),
        f"session {point.session}",
    ]
    return ", ".join(parts)


def _list_levels(series: Series, scale: _Scale) -> list[Line]:
    edges = [0, *(change.index for change in series.changes), len(series.points)]
    spans = [(first, last, [point.value for point in series.points[first:last]]) for first, last in pairwise(edges)]
    return [
        Line(x1=scale.place_x(first - 0.4), x2=scale.place_x(last - 0.6), y=scale.place_y(sum(values) / len(values)))
        for first, last, values in spans
        if values
    ]


def _list_rules(series: Series, scale: _Scale) -> list[Rule]:
    kinds = {True: "worse", False: "better", None: "other"}
    names = [point.release for point in series.points]
    return [
        *(
            Rule(x=scale.place_x(index), kind="release", text=f"release {name}")
            for index, name in enumerate(names)
            if name and name not in names[:index]
        ),
        *(Rule(x=scale.place_x(mark.index - 0.5), kind="environment", text=describe_mark(mark)) for mark in series.marks),
        *(
            Rule(x=scale.place_x(change.index - 0.5), kind=kinds[change.is_worse], text=describe_change(series, change))
            for change in series.changes
        ),
    ]


def _list_days(times: Sequence[datetime], scale: _Scale) -> tuple[Tick, ...]:
    count = len(times)
    picked = sorted({round(step * (count - 1) / TICKS) for step in range(TICKS + 1)})
    return tuple(Tick(at=scale.place_x(index), text=f"{times[index]:%Y-%m-%d}") for index in picked)
