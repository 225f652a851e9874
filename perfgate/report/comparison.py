"""A comparison of files as text, markdown or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from perfgate.core import Arm, Judgement, Outcome
from perfgate.report.escape import markdown, plain
from perfgate.report.table import Table, choose_layout, lay_out_markdown
from perfgate.report.words import wording
from perfgate.report.words.remedies import name_remedies
from perfgate.stats.welch import PLAN_LIMIT
from perfgate.storage.rounding import describe_judgement, format_count, round_floats
from perfgate.verdict.runs.compare import Comparison, Group
from perfgate.verdict.runs.workloads import show_fact

SCHEMA = 1
HEADER = ("metric", "base", "candidate", "change", "90 % interval", "margin", "outcome", "more runs")


def format_comparison(comparison: Comparison) -> str:
    """Write the answer first, then each workload with its runs and its table, then its caveats."""
    return "\n".join(_write(comparison, plain, choose_layout(), bullet="  ")) + "\n"


def format_comparison_as_markdown(comparison: Comparison) -> str:
    """Write the same for a comment on a pull request."""
    first, *rest = _write(comparison, markdown, lay_out_markdown, bullet="- ")
    return "\n".join([f"**{first}**", *rest]) + "\n"


def format_comparison_as_json(comparison: Comparison) -> str:
    """Write everything a program may want, with sorted keys and the same bytes on any machine."""
    content = {
        "schema": SCHEMA,
        "outcome": comparison.outcome,
        "exit_code": comparison.outcome.exit_code,
        "reasons": comparison.reasons,
        "warnings": comparison.warnings,
        "groups": [_describe_group(group) for group in comparison.groups],
    }
    return orjson.dumps(round_floats(content), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode() + "\n"


def _describe_group(group: Group) -> dict[str, Any]:
    return {
        "workload": group.workload,
        "outcome": group.outcome,
        "reasons": group.reasons,
        "warnings": group.warnings,
        "further_runs": group.further,
        "judgements": [describe_judgement(judgement) for judgement in group.judgements],
        "arms": {
            str(arm): {
                "kept": [run.source for run in runs.kept],
                "cold": [
                    {"source": cold.run.source, "metric": cold.metric, "value": cold.value, "level": cold.level}
                    for cold in runs.cold
                ],
            }
            for arm, runs in group.arms.items()
        },
    }


def _write(comparison: Comparison, escape: Callable[[str], str], draw: Callable[[Table], str], *, bullet: str) -> Iterator[str]:
    yield escape(f"{comparison.outcome}: {_answer(comparison)}")
    for group in comparison.groups:
        yield ""
        yield from (f"{bullet}{escape(line)}" for line in _introduce(group, is_only=len(comparison.groups) == 1))
        if group.judgements:
            yield f"\n{draw(Table(header=HEADER, rows=[_row(judgement, group) for judgement in group.judgements]))}\n"
        yield from (f"{bullet}{escape(line)}" for line in _list_caveats(group))
    named = name_remedies(comparison.outcome, _list_reasons(comparison))
    yield from (f"{bullet}{escape(line)}" for line in (*comparison.reasons[1:], *comparison.warnings))
    if named:
        yield f"{bullet}what to do: {named}"


def _list_reasons(comparison: Comparison) -> list[str]:
    return [*comparison.reasons, *(reason for group in comparison.groups for reason in group.reasons)]


def _answer(comparison: Comparison) -> str:
    """The reason in a line: what was given as one, else the metrics that decided, else what the outcome means."""
    if reasons := _list_reasons(comparison):
        return reasons[0]
    judgements = [judgement for group in comparison.groups for judgement in group.judgements if judgement.gating]
    deciding = [wording.finding(judgement) for judgement in judgements if judgement.outcome is comparison.outcome]
    return "; ".join(deciding) if comparison.outcome is not Outcome.PASS else Outcome.PASS.sentence


def _introduce(group: Group, *, is_only: bool) -> Iterator[str]:
    facts = ", ".join(f"{name} {show_fact(fact)}" for name, fact in group.workload.items())
    yield f"workload: {facts or 'nothing known of it'}" + ("" if is_only else f": {group.outcome}")
    for arm in Arm:
        runs = group.arms[arm]
        dropped = f", {len(runs.cold)} dropped as cold" if runs.cold else ""
        yield f"{arm}: {format_count(len(runs.kept), 'run')} compared{dropped}"
        yield from (f"cold: {cold.run.source} ({arm}): {cold.figures}" for cold in runs.cold)


def _row(judgement: Judgement, group: Group) -> tuple[str, ...]:
    metric = judgement.metric
    unplanned = wording.MISSING if judgement.outcome is Outcome.INCONCLUSIVE else "-"
    more = _count(group.further[metric]) if metric in group.further else unplanned
    return (
        wording.title(judgement),
        wording.value(metric, judgement.base, has_unit=False),
        wording.value(metric, judgement.candidate),
        wording.percent(judgement.change),
        wording.interval(judgement),
        wording.limit(judgement),
        judgement.outcome if judgement.gating else f"({judgement.outcome})",
        more,
    )


def _count(runs: int | None) -> str:
    return f"over {PLAN_LIMIT}" if runs is None else str(runs)


def _list_caveats(group: Group) -> Iterator[str]:
    """What would settle the question, what only informs and why, and what the intervals rest on."""
    yield from _settle(group)
    for judgement in group.judgements:
        yield from (f"{wording.title(judgement)}: {note}" for note in judgement.notes)
    if any(not judgement.gating for judgement in group.judgements):
        yield "an outcome in brackets does not gate"
    yield from (*group.reasons[1:], *group.warnings)


def _settle(group: Group) -> Iterator[str]:
    gating = {judgement.metric for judgement in group.judgements if judgement.gating}
    further = {name: runs for name, runs in group.further.items() if name in gating}
    if group.outcome is not Outcome.INCONCLUSIVE or not further:
        return
    most = max(further, key=lambda name: (further[name] is None, further[name] or 0))
    what = next(wording.title(judgement) for judgement in group.judgements if judgement.metric == most)
    unit = "server starts" if group.has_stored_noise else "runs"
    power = "nine times in ten, if the true loss is the one seen"
    yield f"{_count(further[most])} more {unit} of each arm would settle it {power} ({what} needs the most)"
