"""Timings of MoE layers in a page: curves over the number of tokens with the roofline, and the verdict where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log1p
from statistics import median

from perfgate.core import Judgement, Verdict
from perfgate.readers.layer_timings import LayerCurve, LayerPoint
from perfgate.report.chart.curves import draw_layers
from perfgate.report.html.page import (
    Commands,
    Disclosure,
    Measure,
    Measures,
    Page,
    PagePart,
    PageSection,
    Picture,
    Sheet,
    make_sheet,
)
from perfgate.report.html.verdict_parts import LEGEND, draw_ruler, draw_strip, style_outcome
from perfgate.report.table import Table
from perfgate.report.words import wording


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """What was given as timings of layers. `verdict` is absent for a survey, which judges nothing."""

    source: str
    curves: tuple[LayerCurve, ...]
    verdict: Verdict | None = None


def build_layer_sections(reports: Sequence[LayerReport]) -> tuple[PageSection, ...]:
    """One section with all curves, and the table of judged layers where there is one."""
    parts: list[PagePart] = []
    figures = 0
    for report in reports:
        if report.verdict is not None:
            parts.append(_tabulate_verdict(report.verdict))
        for curve in report.curves:
            figures += 1
            parts += [Picture(figure=draw_layers(curve, figures)), _tabulate(curve)]
    return (PageSection(name="layers", title="Kernels: MoE layers", parts=tuple(parts)),) if parts else ()


def build_layers_page(report: LayerReport) -> Page:
    """A page of nothing but timings of layers."""
    verdict = report.verdict
    reproduce = PageSection(name="reproduce", title="Reproduce", parts=tuple(_reproduce(report)))
    sections = (*build_layer_sections([report]), reproduce)
    if verdict is None:
        return Page(
            title="MoE layers",
            answer="MoE layers",
            style="none",
            meaning="levels, and no verdict",
            subtitle=report.source,
            sections=sections,
            foot="A survey compares implementations; `perfgate check` judges blocks of base and candidate.",
        )
    return Page(
        title=f"{verdict.outcome.value}: MoE layers",
        answer=verdict.outcome.value,
        style=verdict.outcome.value.lower(),
        meaning=verdict.outcome.sentence,
        subtitle=verdict.scenario,
        facts=(("Hardware", verdict.hardware), ("How sure", f"{verdict.blocks} blocks, {verdict.windows} timed rounds")),
        reasons=verdict.reasons,
        sections=sections,
        foot=f"Rule {verdict.policy.get('rule', 'unknown')}.",
    )


def _reproduce(report: LayerReport) -> Iterator[PagePart]:
    if report.verdict is None:
        return
    yield Commands(lines=(("judge the same timings again", f"perfgate check {report.source}"),))
    rows = [(name, str(value)) for name, value in report.verdict.policy.items()]
    sheet = make_sheet(Table(header=("what", "value"), rows=rows), "Rule and environment", is_numeric=False)
    yield Disclosure(title="Rule and environment", parts=(sheet,))


def _tabulate(curve: LayerCurve) -> Sheet:
    """The numbers of a figure."""
    names = list(dict.fromkeys(name for point in curve.points for name in point.samples_us))
    header = ("M", *(f"{name}, us" for name in names), "roofline, us")
    rows = [
        (
            str(point.tokens),
            *(_show(point, name) for name in names),
            wording.MISSING if not point.floor_us else f"{point.floor_us:,.1f}",
        )
        for point in curve.points
    ]
    return make_sheet(Table(header=header, rows=rows), f"{curve.shape}: median time of a layer")


def _show(point: LayerPoint, name: str) -> str:
    return f"{median(point.samples_us[name]):,.1f}" if name in point.samples_us else wording.MISSING


def _tabulate_verdict(verdict: Verdict) -> Measures:
    rows = tuple(_make_measure(judgement) for judgement in verdict.judgements)
    return Measures(name="layer-verdict", first_title="layer", base_title="base", ruler=draw_ruler(), rows=rows, legend=LEGEND)


def _make_measure(judgement: Judgement) -> Measure:
    """A layer is a time: slower is worse, as it stands."""
    bounds = None
    if judgement.low is not None and judgement.high is not None and judgement.change is not None:
        bounds = (log1p(judgement.low), log1p(judgement.change), log1p(judgement.high))
    times = [wording.MISSING if value is None else f"{value:,.1f} us" for value in (judgement.base, judgement.candidate)]
    return Measure(
        title=judgement.metric,
        base=times[0],
        candidate=times[1],
        change=wording.percent(judgement.change),
        interval=wording.interval(judgement),
        sense=wording.point(judgement),
        line=wording.percent(judgement.fails_from),
        outcome=judgement.outcome.value,
        style=style_outcome(judgement),
        strip=None if bounds is None else draw_strip(judgement, bounds),
    )
