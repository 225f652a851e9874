"""The verdict on MoE layers as text or markdown."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.core import Judgement, Outcome, Verdict
from perfgate.report.escape import markdown, plain
from perfgate.report.table import Table, lay_out, lay_out_markdown
from perfgate.report.words.remedies import name_remedies
from perfgate.report.words.wording import percent
from perfgate.storage.rounding import format_count, format_interval, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What a comment on serving says of the layers timed beside it. `losses` name each layer that became slower."""

    sentence: str
    losses: tuple[str, ...]


HEADER = ("layer", "base", "candidate", "change", "95 % bounds", "margin", "outcome")


def render_layers(verdict: Verdict, *, is_markdown: bool) -> str:
    """The verdict first, then its reasons, then one row for each layer. Times are medians in microseconds."""
    clean = markdown if is_markdown else plain
    table = tabulate_layers(verdict)
    head = f"{verdict.outcome}: {clean(verdict.scenario)}, {clean(verdict.hardware)}"
    lines = [f"### {head}" if is_markdown else head, ""]
    lines += [f"- {clean(reason)}" for reason in verdict.reasons]
    remedies = name_remedies(verdict.outcome, verdict.reasons)
    lines += [f"- what to do: {remedies}"] if remedies else []
    lines += ["", lay_out_markdown(table) if is_markdown else lay_out(table), ""]
    lines += [f"{verdict.blocks} blocks; intervals are 90 %, two one-sided 95 % bounds"]
    return "\n".join(lines) + "\n"


def summarise_layers(verdict: Verdict) -> Kernels:
    """Put a verdict on layers into one sentence that names every loss; an invalid one says why."""
    worst = sorted(verdict.judgements, key=lambda judgement: -(judgement.worse or 0.0))
    losses = tuple(f"{one.metric} {percent(one.change)}" for one in worst if one.outcome is Outcome.REGRESSION)
    fails_from = sorted(one.fails_from for one in verdict.judgements if one.fails_from is not None)
    lines = [format_percent(line) for line in fails_from]
    line = f", fails from {' to '.join(dict.fromkeys((lines[0], lines[-1])))}" if lines else ""
    said = (
        f"{verdict.outcome}: {format_count(len(verdict.judgements), 'timing')} in {format_count(verdict.blocks, 'block')}{line}"
    )
    if verdict.outcome is Outcome.INVALID:
        return Kernels(sentence=f"{said}; {'; '.join(verdict.reasons[:3])}", losses=losses)
    return Kernels(sentence=f"{said}; slower: {', '.join(losses)}" if losses else said, losses=losses)


def tabulate_layers(verdict: Verdict) -> Table:
    """One row for each layer, the worst first."""
    rows = [_row(judgement) for judgement in sorted(verdict.judgements, key=_order)]
    return Table(header=HEADER, rows=rows, words=(0, len(HEADER) - 1))


def _order(judgement: Judgement) -> tuple[bool, float]:
    return (judgement.outcome is not Outcome.REGRESSION, -(judgement.worse or 0.0))


def _row(judgement: Judgement) -> tuple[str, ...]:
    times = [f"{value:.1f} us" if value is not None else "-" for value in (judgement.base, judgement.candidate)]
    interval = "-"
    if judgement.low is not None and judgement.high is not None:
        interval = format_interval(judgement.low, judgement.high, 2)
    change = "-" if judgement.change is None else _percent(judgement.change)
    return (judgement.metric, *times, change, interval, _percent(judgement.margin_ratio), str(judgement.outcome))


def _percent(ratio: float) -> str:
    return format_percent(ratio, 2, is_signed=True)
