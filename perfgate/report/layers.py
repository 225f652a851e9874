"""The verdict on MoE layers as text or markdown."""

from __future__ import annotations

from perfgate.core import Judgement, Verdict
from perfgate.report.escape import markdown, plain
from perfgate.report.table import Table, lay_out, lay_out_markdown
from perfgate.rounding import format_percent

HEADER = ("layer", "base", "candidate", "change", "interval", "verdict")


def render_layers(verdict: Verdict, *, is_markdown: bool) -> str:
    """The verdict first, then its reasons, then one row for each layer. Times are medians in microseconds."""
    clean = markdown if is_markdown else plain
    table = Table(header=HEADER, rows=[_row(judgement) for judgement in verdict.judgements])
    head = f"{verdict.outcome}: {clean(verdict.scenario)}, {clean(verdict.hardware)}"
    lines = [f"### {head}" if is_markdown else head, ""]
    lines += [f"- {clean(reason)}" for reason in verdict.reasons]
    lines += ["", lay_out_markdown(table) if is_markdown else lay_out(table), ""]
    lines += [f"{verdict.blocks} blocks; intervals: two-sided, 90 %; margin: {format_percent(verdict.judgements[0].margin, 0)}"]
    return "\n".join(lines) + "\n"


def _row(judgement: Judgement) -> tuple[str, ...]:
    times = [f"{value:.1f} us" if value is not None else "-" for value in (judgement.base, judgement.candidate)]
    interval = "-"
    if judgement.low is not None and judgement.high is not None:
        interval = f"{_percent(judgement.low)} to {_percent(judgement.high)}"
    change = "-" if judgement.change is None else _percent(judgement.change)
    return (judgement.metric, *times, change, interval, str(judgement.outcome))


def _percent(ratio: float) -> str:
    return format_percent(ratio, 2, is_signed=True)
