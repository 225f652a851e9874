"""The parts of a page that a verdict fills: its tiles and the table of judged metrics."""

from __future__ import annotations

from perfgate.core import Judgement, Outcome, Verdict
from perfgate.metrics import METRICS
from perfgate.report import wording
from perfgate.report.html.intervals import draw_ruler, draw_strip
from perfgate.report.html.page import Measure, Measures, Tile
from perfgate.report.picture import worse_bounds
from perfgate.report.view import Row, View, sort_judgements

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


def _make_measure(row: Row, judgement: Judgement) -> Measure:
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
