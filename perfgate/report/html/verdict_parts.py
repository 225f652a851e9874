"""The parts of a page that a verdict fills: its picture and the table of judged metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, log1p

from perfgate.core import Judgement, Verdict
from perfgate.report.chart.letters import measure_text
from perfgate.report.chart.svg import (
    NARROW,
    TICK_SIZE,
    TITLE_SIZE,
    Drawing,
    Figure,
    Scale,
    SvgElement,
    box,
    dot,
    line,
    make_figure,
    trace,
    write_label,
)
from perfgate.report.html.page import Measure, Measures
from perfgate.report.view import MetricRow, View
from perfgate.report.words import wording
from perfgate.report.words.families import list_families
from perfgate.report.words.figure import worse_bounds
from perfgate.scenario.schema import Scenario

Bounds = tuple[float, float, float]

WIDTH, HEIGHT = 260.0, 28.0
MIDDLE = HEIGHT / 2
# As in the comment: two margins of gain to three of loss, so that rows of different metrics can be read against each other.
AXIS = Scale(low=-2.0, high=3.0, start=8.0, end=WIDTH - 8.0)
LIMIT_ARROW = 4.0


def draw_strip(judgement: Judgement, bounds: Bounds) -> Drawing:
    """Draw an interval in units of its margin; `bounds`: low end, estimate and high end as logarithms, positive for worse."""
    low, middle, high = (bound / log1p(judgement.margin_ratio) for bound in bounds)
    return Drawing(
        width=WIDTH,
        height=HEIGHT,
        shapes=(*_draw_limits(judgement), *_draw_interval(judgement, (low, middle, high), AXIS, MIDDLE)),
    )


def draw_ruler() -> Drawing:
    """What stands above the column of strips."""
    at = {"better": AXIS.low, "0": 0.0, "margin": 1.0, "worse": AXIS.high}
    anchors = {"better": "start", "worse": "end"}
    words = (write_label(AXIS.place(value), 13, word, "tick", anchors.get(word, "middle")) for word, value in at.items())
    return Drawing(width=WIDTH, height=18.0, shapes=tuple(words))


def _draw_limits(judgement: Judgement) -> Iterator[SvgElement]:
    if judgement.band is not None and isfinite(judgement.band) and judgement.band > 0:
        reach = log1p(judgement.band) / log1p(judgement.margin_ratio)
        yield box(
            (AXIS.clamp(-reach), 3), (AXIS.clamp(reach), HEIGHT - 3), "band", hint="noise band: equal builds differ by this"
        )
    yield line((AXIS.place(0), 0), (AXIS.place(0), HEIGHT), "zero")
    yield from _draw_limit(_find_limit(judgement), AXIS, (0, HEIGHT), "fails from here")
    yield line((AXIS.place(1), 5), (AXIS.place(1), HEIGHT - 5), "half", hint="the margin")


def _find_limit(judgement: Judgement) -> float | None:
    """The loss from which a metric fails, in units of its margin."""
    return None if judgement.fails_from is None else log1p(judgement.fails_from) / log1p(judgement.margin_ratio)


def _draw_limit(limit: float | None, axis: Scale, ends: tuple[float, float], hint: str) -> Iterator[SvgElement]:
    """The line between two heights from which a metric fails; an arrow at the lower one where it lies beyond the axis."""
    if limit is None:
        return
    if axis.holds(limit):
        at = axis.place(limit)
        yield line((at, ends[0]), (at, ends[1]), "limit", hint=hint)
    else:
        place = axis, ends[1] - LIMIT_ARROW - 1
        yield _point_beyond(limit, "arrow outcome-regression", place, size=LIMIT_ARROW, hint=f"{hint}, beyond the scale")


def _draw_interval(judgement: Judgement, bounds: Bounds, axis: Scale, at: float) -> Iterator[SvgElement]:
    """An interval in units of its margin, on the height `at` of an axis."""
    low, middle, high = bounds
    style = f"outcome-{judgement.outcome.value.lower()}"
    yield line((axis.clamp(low), at), (axis.clamp(high), at), f"interval {style}")
    for end in (low, high):
        if axis.holds(end):
            yield line((axis.place(end), at - 5), (axis.place(end), at + 5), f"interval {style}")
        else:
            yield _point_beyond(end, f"arrow {style}", (axis, at))
    if axis.holds(middle):
        yield dot((axis.place(middle), at), "diamond", style, radius=5)
    else:
        yield _point_beyond(middle, f"mark {style}", (axis, at), size=7)


def _point_beyond(
    value: float, style: str, place: tuple[Scale, float], size: float = 5, hint: str = "goes on beyond the scale"
) -> SvgElement:
    """An arrow at the end of the scale that `value` lies beyond."""
    axis, middle = place
    at, away = axis.clamp(value), 1 if value > axis.high else -1
    corners = [(at - away, middle - size), (at + away * (size - 1), middle), (at - away, middle + size)]
    return trace(corners, style, hint=hint)


LEGEND = (
    "The sign is the estimate, the bar its 90 % interval (two one-sided 95 % bounds). All rows share one scale, in "
    "margins of their metric; worse is to the right. REGRESSION: the estimate is beyond the red dashed line, from which the "
    "metric fails. PASS: it is within half the margin, and the bar ends before the dotted line, the margin."
)
SHORT_LEGEND = (
    "Diamond: estimate; bar: its interval. A metric fails if its diamond is beyond the red line, half its margin or further "
    "out where noise is large, and can pass only if its bar ends before the dotted line, its margin."
)
BAND = " The grey field is the noise band: 95 % of comparisons of equal builds stay within it."
HERO_ROW, HERO_ABOVE, HERO_BELOW, HERO_EDGE = 54.0, 30.0, 10.0, 10.0
# On a narrow page the limits of a metric and its outcome stand on lines of their own.
HERO_LINE = 18.0
HERO_GAP = 16.0


# Where an interval is wider than this, a margin could no longer be seen.
HERO_MOST = Scale(low=-6.0, high=9.0, start=0.0, end=1.0)


def draw_forest(judgements: Sequence[Judgement]) -> Figure | None:
    """The gating metrics with their intervals, one below the other; None where none has a number."""
    rows = [(one, bounds) for one in judgements if one.gating and (bounds := worse_bounds(one)) is not None]
    if not rows:
        return None
    return make_figure("verdict", "What changed", SHORT_LEGEND, lambda width: _draw_rows(rows, width))


def _draw_rows(rows: Sequence[tuple[Judgement, Bounds]], width: float) -> Drawing:
    ends = [bound / log1p(judgement.margin_ratio) for judgement, bounds in rows for bound in bounds]
    ends.extend(limit for judgement, _ in rows if (limit := _find_limit(judgement)) is not None)
    axis = Scale(
        low=max(min(AXIS.low, *ends), HERO_MOST.low),
        high=min(max(AXIS.high, *ends), HERO_MOST.high),
        start=HERO_EDGE,
        end=width - HERO_EDGE,
    )
    lines = 2 if width <= NARROW else 0
    each = HERO_ROW + lines * HERO_LINE
    height = HERO_ABOVE + each * len(rows)
    words = _name_places(axis)
    anchors = {"better": "start", "worse": "end"}
    shapes: list[SvgElement] = [
        write_label(axis.place(value), 16, word, "tick", anchors.get(word, "middle")) for word, value in words.items()
    ]
    indent = 0.0 if lines else max(measure_text(_name_row(judgement), TITLE_SIZE) for judgement, _ in rows) + HERO_GAP
    for number, (judgement, bounds) in enumerate(rows):
        top = HERO_ABOVE + number * each
        shapes.extend(_head_row(judgement, axis, top, indent))
        shapes.extend(_draw_row(judgement, bounds, axis, top + lines * HERO_LINE))
    return Drawing(width=width, height=height + HERO_BELOW, shapes=tuple(shapes))


def _name_places(axis: Scale) -> dict[str, float]:
    """The words above the rows. A long scale on a narrow page leaves no room for all; the legend tells the dotted line, too."""
    lead = axis.place(0.0) - axis.start
    zero = "no change" if lead > measure_text("better ", TICK_SIZE) + measure_text("no change", TICK_SIZE) / 2 else "0"
    words = {"better": axis.low, zero: 0.0, "worse": axis.high}
    if axis.place(1.0) - axis.place(0.0) > measure_text(f"{zero} margin", TICK_SIZE) / 2:
        words["margin"] = 1.0
    return words


def _name_row(judgement: Judgement) -> str:
    """A metric and its change."""
    return f"{wording.title(judgement)}  {wording.percent(judgement.change)} {wording.point(judgement)}"


def _tell_limits(judgement: Judgement) -> str:
    """The numbers of the two lines beside a row, for example "fails from +2.3 %, margin +3.0 %"."""
    margin = f"margin {wording.limit(judgement)}"
    return margin if judgement.fails_from is None else f"fails from {wording.line(judgement)}, {margin}"


def _head_row(judgement: Judgement, axis: Scale, top: float, indent: float) -> Iterator[SvgElement]:
    """What stands above the bar of a metric: on one line with its limits after `indent`; on three lines without an indent."""
    limits, outcome = (top + 14, top + 14) if indent else (top + 14 + HERO_LINE, top + 14 + 2 * HERO_LINE)
    yield write_label(axis.start, top + 14, _name_row(judgement), "panel-title")
    yield write_label(axis.start + indent, limits, _tell_limits(judgement), "tick")
    style = f"panel-title outcome-{judgement.outcome.value.lower()}"
    at, anchor = (axis.end, "end") if indent else (axis.start, "start")
    yield write_label(at, outcome, judgement.outcome.value, style, anchor)


def _draw_row(judgement: Judgement, bounds: Bounds, axis: Scale, top: float) -> Iterator[SvgElement]:
    """The bar of one metric, between its lines."""
    low, middle, high = (bound / log1p(judgement.margin_ratio) for bound in bounds)
    for value, style in ((0.0, "zero"), (1.0, "half")):
        yield line((axis.place(value), top + 22), (axis.place(value), top + 46), style)
    limit, words = _find_limit(judgement), f"fails from {wording.line(judgement)}"
    yield from _draw_limit(limit, axis, (top + 22, top + 46), words)
    if limit is not None and not axis.holds(limit):
        yield write_label(axis.end - 2 * LIMIT_ARROW, top + 50, words, "tick", "end")
    yield from _draw_interval(judgement, (low, middle, high), axis, top + 34)


def list_shown(verdict: Verdict, scenario: Scenario) -> tuple[Judgement, ...]:
    """The judgements that a report shows, in its order."""
    families = list_families(verdict.judgements, is_closed_loop=scenario.load.is_closed_loop)
    return tuple(family.judgement for family in families if family.is_shown)


def style_outcome(judgement: Judgement) -> str:
    """The class of an outcome; one that does not gate is not coloured."""
    return judgement.outcome.value.lower() if judgement.gating else "shown-only"


def make_measures(verdict: Verdict, scenario: Scenario, view: View) -> Measures | None:
    """The table of judged metrics; None where none has a number."""
    pairs = zip(view.rows, list_shown(verdict, scenario), strict=True)
    rows = tuple(_make_measure(row, judgement) for row, judgement in pairs)
    if not rows:
        return None
    has_band = any(judgement.band is not None for judgement in verdict.judgements)
    more = BAND if has_band else " No noise band is stored for this machine."
    return Measures(
        name="intervals",
        first_title="metric",
        base_title=view.base_title,
        ruler=draw_ruler(),
        rows=rows,
        notes=view.footnotes,
        legend=LEGEND + more,
    )


def _make_measure(row: MetricRow, judgement: Judgement) -> Measure:
    bounds = worse_bounds(judgement)
    return Measure(
        title=row.title,
        base=row.base,
        candidate=row.candidate,
        change=row.change,
        sense=row.sense,
        interval=row.interval,
        line=row.line,
        is_gating=judgement.gating,
        outcome=row.outcome,
        style=style_outcome(judgement),
        strip=None if bounds is None else draw_strip(judgement, bounds),
        marks=row.marks,
    )
