"""The parts of a page that a verdict fills: its tiles and the table of judged metrics."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, log1p

from perfgate.core import Judgement, Outcome, Verdict
from perfgate.metrics import METRICS
from perfgate.report import wording
from perfgate.report.chart.svg import Drawing, Scale, SvgElement, box, dot, line, trace, write_label
from perfgate.report.figure import worse_bounds
from perfgate.report.html.page import Measure, Measures, Tile
from perfgate.report.view import MetricRow, View, sort_judgements

WIDTH, HEIGHT = 260.0, 28.0
MIDDLE = HEIGHT / 2
# As in the comment: two margins of gain to three of loss, so that rows of different metrics can be read against each other.
AXIS = Scale(low=-2.0, high=3.0, start=8.0, end=WIDTH - 8.0)


def draw_strip(judgement: Judgement, bounds: tuple[float, float, float]) -> Drawing:
    """Draw an interval in units of its margin; `bounds`: low end, estimate and high end as logarithms, positive for worse."""
    low, middle, high = (bound / log1p(judgement.margin_ratio) for bound in bounds)
    return Drawing(width=WIDTH, height=HEIGHT, shapes=(*_draw_limits(judgement), *_draw_interval(judgement, low, middle, high)))


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
    yield line((AXIS.place(0.5), 5), (AXIS.place(0.5), HEIGHT - 5), "half", hint="half the margin: proven beyond it is a loss")
    yield line((AXIS.place(1), 0), (AXIS.place(1), HEIGHT), "limit", hint="the margin")


def _draw_interval(judgement: Judgement, low: float, middle: float, high: float) -> Iterator[SvgElement]:
    style = f"outcome-{judgement.outcome.value.lower()}"
    yield line((AXIS.clamp(low), MIDDLE), (AXIS.clamp(high), MIDDLE), f"interval {style}")
    for end in (low, high):
        if AXIS.holds(end):
            yield line((AXIS.place(end), MIDDLE - 5), (AXIS.place(end), MIDDLE + 5), f"interval {style}")
        else:
            yield _point_beyond(end, f"arrow {style}")
    if AXIS.holds(middle):
        yield dot((AXIS.place(middle), MIDDLE), "diamond", style, radius=5)
    else:
        yield _point_beyond(middle, f"mark {style}", size=7)


def _point_beyond(value: float, style: str, size: float = 5) -> SvgElement:
    """An arrow at the end of the scale that `value` lies beyond."""
    at, away = AXIS.clamp(value), 1 if value > AXIS.high else -1
    corners = [(at - away, MIDDLE - size), (at + away * (size - 1), MIDDLE), (at - away, MIDDLE + size)]
    return trace(corners, style, hint="goes on beyond the scale")


LEGEND = (
    "The sign is the estimate, the bar its interval. All rows share one scale, in margins of their metric; worse is to the "
    "right. PASS needs the whole bar to end before the margin, REGRESSION a proven loss of more than half the way to it."
)
BAND = " The grey field is the noise band: 95 % of comparisons of equal builds stay within it."


def list_shown(verdict: Verdict) -> tuple[Judgement, ...]:
    """The judgements that a report shows, in its order: those with a number or a reason why there is none."""
    ordered = sort_judgements(verdict.judgements)
    return tuple(judgement for judgement in ordered if judgement.change is not None or judgement.notes)


def make_tiles(verdict: Verdict) -> tuple[Tile, ...]:
    """The headline metrics, and whatever else was lost."""
    shown = [judgement for judgement in list_shown(verdict) if judgement.change is not None]
    return tuple(_make_tile(judgement) for judgement in shown if METRICS[judgement.metric].headline or _is_lost(judgement))


def _is_lost(judgement: Judgement) -> bool:
    return judgement.gating and judgement.outcome is Outcome.REGRESSION


def _make_tile(judgement: Judgement) -> Tile:
    base = wording.value(judgement.metric, judgement.base, has_unit=False)
    lines = (
        f"{base} \N{RIGHTWARDS ARROW} {wording.value(judgement.metric, judgement.candidate)}",
        f"95 % bounds {wording.interval(judgement)}",
        f"margin {wording.limit(judgement)}" + ("" if judgement.gating else ", not gating"),
    )
    return Tile(
        title=wording.title(judgement),
        figure=wording.percent(judgement.change),
        lines=lines,
        style=style_outcome(judgement),
        outcome=judgement.outcome.value,
    )


def style_outcome(judgement: Judgement) -> str:
    """The class of an outcome; one that does not gate is not coloured."""
    return judgement.outcome.value.lower() if judgement.gating else "silent"


def make_measures(verdict: Verdict, view: View) -> Measures | None:
    """The table of judged metrics; None where none has a number."""
    pairs = zip(view.rows, list_shown(verdict), strict=True)
    rows = tuple(_make_measure(row, judgement) for row, judgement in pairs)
    if not rows:
        return None
    has_band = any(judgement.band is not None for judgement in verdict.judgements)
    more = BAND if has_band else " No baseline is stored for this machine, so there is no noise band."
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
        interval=row.interval,
        limit=row.limit,
        band=row.band,
        outcome=row.outcome,
        style=style_outcome(judgement),
        strip=None if bounds is None else draw_strip(judgement, bounds),
        marks=row.marks,
    )
