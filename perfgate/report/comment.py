"""One comment for several scenarios, in the room that a forge leaves: what is calm is folded first, a regression never."""

from __future__ import annotations

from collections.abc import Sequence

from perfgate.core import Judgement, Outcome
from perfgate.report import wording
from perfgate.report.escape import markdown
from perfgate.report.figure import LEGEND
from perfgate.report.render import TOP, Case, Fold, render_case
from perfgate.report.view import count_margins

WORST_FIRST = (Outcome.REGRESSION, Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.IMPROVED)


def render_comment(cases: Sequence[Case], room: int) -> str:
    """Return GitHub markdown of at most `room` characters whose first line is the verdict: of all cases, the worst first.

    What does not fit is folded step by step: environments, then metrics within their margins, then all but the line that says
    the verdict, and at last the scenarios without a regression. A regression is never left out, not even for lack of room.
    """
    if not cases:
        return ""
    ordered = sorted(cases, key=_rank)
    if len(ordered) == 1:
        whole = (render_case(ordered[0], fold) for fold in Fold)
        return next((text for text in whole if len(text) <= room), None) or _list_losses(ordered)
    head, foot = _head(ordered), f"\n<sub>{LEGEND}</sub>\n"
    texts = _unfold(ordered, room - len(head) - len(foot))
    return "\n".join((head, *texts)) + foot if texts else _list_losses(ordered)


def _rank(case: Case) -> tuple[int, float]:
    """The worst outcome first; of one outcome the scenario that lost most, measured in margins."""
    gating = (judgement for judgement in case.verdict.judgements if judgement.gating)
    return WORST_FIRST.index(case.verdict.outcome), -max(map(count_margins, gating), default=0.0)


def split_head(comment: str) -> tuple[str, str]:
    """Take a comment's first line, without its marks, from the rest: the verdict in words, with its numbers."""
    first, _, rest = comment.partition("\n")
    return first.lstrip("# ").partition(" ")[2], rest.strip("\n")


def _unfold(cases: Sequence[Case], room: int) -> list[str]:
    """Begin with a line for each case, and unfold them while there is room, the worst first; empty if the lines do not fit."""
    texts = [render_case(case, Fold.ALL_BUT_ONE_LINE, TOP + 1) for case in cases]
    left = room - sum(len(text) + 1 for text in texts)
    if left < 0:
        return []
    for fold in (Fold.CALM_METRICS, Fold.ENVIRONMENT, Fold.NOTHING):
        for number, case in enumerate(cases):
            longer = render_case(case, fold, TOP + 1)
            if len(longer) - len(texts[number]) <= left:
                left -= len(longer) - len(texts[number])
                texts[number] = longer
    return texts


def _head(cases: Sequence[Case]) -> str:
    """The worst verdict, how many share it, and the numbers of the first of them."""
    outcome = cases[0].verdict.outcome
    count = sum(case.verdict.outcome is outcome for case in cases)
    numbers = render_case(cases[0], Fold.ALL_BUT_ONE_LINE, TOP + 1).splitlines()[0].partition(": ")[2]
    named = f"{markdown(cases[0].verdict.scenario)}: {numbers}"
    return f"{'#' * TOP} {wording.ICONS[outcome]} {outcome} in {count} of {len(cases)} scenarios; {named}\n"


def _list_losses(cases: Sequence[Case]) -> str:
    """The shortest that a comment can be: every loss, and how many scenarios had none."""
    lost = [(case, losses) for case in cases if (losses := list_losses(case))]
    outcome = cases[0].verdict.outcome
    head = f"{'#' * TOP} {wording.ICONS[outcome]} {outcome}: {len(cases)} scenarios, shortened"
    lines = [f"- {markdown(case.verdict.scenario)}: REGRESSION in {', '.join(losses)}" for case, losses in lost]
    left = [case.verdict.outcome for case in cases if not list_losses(case)]
    counts = ", ".join(f"{left.count(outcome)} {outcome}" for outcome in WORST_FIRST if outcome in left)
    return "\n".join([head, "", *lines, *([f"- without a regression: {counts}"] if counts else [])]) + "\n"


def list_losses(case: Case) -> tuple[str, ...]:
    """Every metric and layer of a case that became slower, with its change."""
    serving = (f"{wording.title(one)} {wording.percent(one.change)}" for one in case.verdict.judgements if _is_lost(one))
    layers = case.layers.judgements if case.layers else ()
    return (*serving, *(f"{markdown(one.metric)} {wording.percent(one.change)}" for one in layers if _is_lost(one)))


def _is_lost(judgement: Judgement) -> bool:
    return judgement.outcome is Outcome.REGRESSION
