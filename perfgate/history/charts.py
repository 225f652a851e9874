"""A series as one picture: sessions over time, their levels, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil, floor
from statistics import fmean

from perfgate.history.listing import HASH_DIGITS, SENSES, UNKNOWN, describe_change, describe_mark, show_value
from perfgate.history.trends import LevelSeries, SeriesPoint
from perfgate.report.chart.svg import Drawing, Panel, Scale, SvgElement, dot, find_left, find_span, line, show_number
from perfgate.storage.rounding import format_count

WIDTHS, HEIGHT = (560.0, 340.0), 220.0
"""Each chart is drawn for wide screens and for phones."""
LEFT, RIGHT, TOP, BOTTOM = 74.0, 44.0, 22.0, 26.0
TICK_WIDTH = 86.0
"""Pixels of the axis that a written time needs."""
DAY_S = 86_400.0
STEPS_S = (DAY_S / 4, DAY_S / 2, *(DAY_S * days for days in (1, 2, 7, 14, 28, 91, 182, 364, 1820)))
LEAST_S = DAY_S
"""Seconds that the axis spans at least, so that the sessions of one day do not look like a trend over years."""
COLOURS = 7
"""So many runners have a colour of their own; further ones share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One series with its words, drawn for each of WIDTHS; `metric` is what all charts of one metric share."""

    metric: str
    title: str
    summary: str
    drawings: tuple[Drawing, ...]


def build_chart(series: LevelSeries, runners: Sequence[str]) -> Chart:
    """Draw a series; `runners` gives each machine the colour that it has in every chart."""
    return Chart(
        metric=series.subject.title,
        title=f"{series.subject.title}{f', {series.subject.unit}' if series.subject.unit else ''}",
        summary=_summarise(series),
        drawings=tuple(_draw(series, runners, width) for width in WIDTHS),
    )


def _draw(series: LevelSeries, runners: Sequence[str], width: float) -> Drawing:
    panel = _frame(series, width)
    marks = (*_draw_moments(series, panel), *_draw_levels(series, panel), *_draw_points(series, panel, runners))
    return Drawing(width=width, height=HEIGHT, shapes=(*panel.frame(), *marks))


def _frame(series: LevelSeries, width: float) -> Panel:
    """Sessions stand at their time, in seconds since 1970."""
    low, high = find_span((point.value for point in series.points), pad=0.1)
    first, last = (series.points[place].at.timestamp() for place in (0, -1))
    edge = max((last - first) * 0.02, (LEAST_S - (last - first)) / 2)
    x = Scale(low=first - edge, high=last + edge, start=find_left(map(show_number, (low, high)), LEFT), end=width - RIGHT)
    form = "%Y-%m-%d" if _choose_step(x) >= DAY_S else "%m-%d %H:%M"
    return Panel(
        x=x,
        y=Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP),
        title="",
        ticks_x=_list_times(x),
        show_x=lambda second: f"{datetime.fromtimestamp(second, UTC):{form}}",
    )


def _choose_step(x: Scale) -> float:
    """The shortest of STEPS_S that leaves TICK_WIDTH for each time."""
    return next((step for step in STEPS_S if (x.high - x.low) / step < (x.end - x.start) / TICK_WIDTH), STEPS_S[-1])


def _list_times(x: Scale) -> tuple[float, ...]:
    """Times within the scale, evenly apart since 1970; the ends of the scale where it holds fewer than two."""
    step = _choose_step(x)
    first, last = ceil(x.low / step), floor(x.high / step)
    return tuple(number * step for number in range(first, last + 1)) if first < last else (x.low, x.high)


def _when(series: LevelSeries, index: float) -> float:
    """The time of a session; of half an index the middle between two, and at the ends that of the first or the last."""
    last = len(series.points) - 1
    around = (series.points[min(max(place, 0), last)].at.timestamp() for place in (floor(index), ceil(index)))
    return sum(around) / 2


def _summarise(series: LevelSeries) -> str:
    changes = f"{format_count(len(series.changes), 'change')} of level"
    return f"{format_count(len(series.points), 'session')}, now {show_value(series, series.level)}, {changes}"


def _draw_points(series: LevelSeries, panel: Panel, runners: Sequence[str]) -> Iterator[SvgElement]:
    for point in series.points:
        place = (panel.x.place(point.at.timestamp()), panel.y.clamp(point.value))
        style = f"series-{runners.index(point.runner) % COLOURS} full"
        yield dot(place, "circle", style, radius=3.5, hint=_describe_point(series, point))


def _describe_point(series: LevelSeries, point: SeriesPoint) -> str:
    parts = [
        f"{point.at:%Y-%m-%d %H:%M} UTC",
        show_value(series, point.value),
        f"commit {point.commit[:HASH_DIGITS] or UNKNOWN}",
        f"runner {point.runner or UNKNOWN}",
        *([f"release {point.release}"] if point.release else []),
        f"session {point.session}",
    ]
    return ", ".join(parts)


def _draw_levels(series: LevelSeries, panel: Panel) -> Iterator[SvgElement]:
    """A line at the mean of the sessions between two changes."""
    edges = [0, *(change.index for change in series.changes), len(series.points)]
    for first, last in pairwise(edges):
        if values := [point.value for point in series.points[first:last]]:
            y = panel.y.clamp(fmean(values))
            ends = (panel.x.place(_when(series, index)) for index in (first - 0.5, last - 0.5))
            yield line((next(ends), y), (next(ends), y), "level")


def _draw_moments(series: LevelSeries, panel: Panel) -> Iterator[SvgElement]:
    """A vertical line at each first session of a release, and before each change of the environment or of the level."""
    names = [point.release for point in series.points]
    for index, name in enumerate(names):
        if name and name not in names[:index]:
            yield _draw_moment(panel, _when(series, index), "release", f"release {name}")
    for mark in series.marks:
        yield _draw_moment(panel, _when(series, mark.index - 0.5), "environment", describe_mark(mark))
    for change in series.changes:
        yield _draw_moment(panel, _when(series, change.index - 0.5), SENSES[change.is_worse], describe_change(series, change))


def _draw_moment(panel: Panel, second: float, kind: str, hint: str) -> SvgElement:
    x = panel.x.place(second)
    return line((x, TOP - 10), (x, HEIGHT - BOTTOM), f"rule {kind}", hint=hint)
