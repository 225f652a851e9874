"""One comment for several scenarios, in the room that a forge leaves and the words that a reader takes.

The worst scenario is open. Of the next ones the heading stands over a fold, as many as make ROWS_SHOWN rows with the metrics of
the first and leave it the words that it needs at least; all others are counted in one line over a fold of their own. What is
calm is left out first, a regression never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from perfgate.core import Judgement, Outcome, combine_outcomes
from perfgate.report.escape import markdown
from perfgate.report.render import (
    FOLD_BEGIN,
    FOLD_END,
    ROWS_SHOWN,
    Fold,
    ReportedCase,
    count_rows,
    lay_out_body,
    render_case,
    write_words,
)
from perfgate.report.words import wording
from perfgate.report.words.families import count_margins
from perfgate.report.words.headline import TOP, write_heading, write_several, write_shortened
from perfgate.report.words.length import WORDS, close_folds, count_words, write_fold
from perfgate.verdict.counters import describe_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment in its parts: what all of it says, the words of its heading as a line of markdown, and the markdown below."""

    outcome: Outcome
    headline: str
    body: str

    def render(self) -> str:
        """Return the whole comment as markdown."""
        return f"{write_heading(self.outcome.icon, self.headline)}\n{self.body}"


def render_comment(cases: Sequence[ReportedCase], room: int) -> str:
    """Return a comment on `cases` as markdown of at most `room` characters; empty when there are none."""
    return build_comment(cases, room).render() if cases else ""


def build_comment(cases: Sequence[ReportedCase], room: int, words: int = WORDS) -> Comment:
    """Return a comment of at most `room` characters on one or more cases, the one whose heading is that of all first.

    Before its folds it has at most `words`, its heading among them: details move into the folds until it fits.
    What does not fit is folded step by step: environments, then metrics within their margins, then all but the line that says
    the verdict, and at last the scenarios without a regression. A regression is never left out, not even for lack of room.
    """
    outcome = combine_outcomes(case.verdict.outcome for case in cases)
    ordered = sorted(cases, key=lambda case: (case.verdict.outcome is not outcome, *_rank(case)))
    show = _show_one if len(ordered) == 1 else _show_several
    return show(ordered, room, words) or _list_losses(ordered, words)


def _rank(case: ReportedCase) -> tuple[int, float]:
    """The worst outcome first; of one outcome the scenario that lost most, measured in margins."""
    gating = (judgement for judgement in case.verdict.judgements if judgement.gating)
    return case.verdict.outcome.order, -max(map(count_margins, gating), default=0.0)


def _show_one(cases: Sequence[ReportedCase], room: int, words: int) -> Comment | None:
    """Fold the one case until it fits; None when it does not."""
    for fold in Fold:
        headline = write_words(cases[0], fold)
        body = lay_out_body(cases[0], fold, words=words - count_words(headline))
        comment = Comment(outcome=cases[0].verdict.outcome, headline=headline, body=body)
        if len(comment.render()) <= room:
            return comment
    return None


def _show_several(cases: Sequence[ReportedCase], room: int, words: int) -> Comment | None:
    """Unfold the cases while there is room; None when not even a line for each fits."""
    headline = write_several([case.headline for case in cases], markdown)
    empty = Comment(outcome=cases[0].verdict.outcome, headline=headline, body="")
    headings = _choose_headings(cases, words - count_words(headline))
    shown = len(headings)
    begin, end = _fold_rest(cases[shown:])
    left = words - count_words(headline) - sum(map(count_words, headings))
    texts = _unfold(cases, room - len(empty.render()) - len(begin) - len(end) - 1, left)
    if not texts:
        return None
    rest = "\n".join(texts[shown:]).strip()
    return replace(empty, body="\n".join(("", *texts[:shown])) + begin + rest + end)


def _choose_headings(cases: Sequence[ReportedCase], words: int) -> Sequence[str]:
    """The headings before the folds: the first case's, and of the others as many as rows and `words` leave room for."""
    rows = max(ROWS_SHOWN - count_rows(cases[0], Fold.NOTHING), 0)
    headings = [_write_heading(case, is_first=number == 0) for number, case in enumerate(cases[: 1 + rows])]
    left = words - count_words(close_folds(lay_out_body(cases[0], Fold.NOTHING, TOP + 1, words=0, is_brief=True)))
    fitting = sum(total <= left for total in accumulate(map(count_words, headings)))
    return headings[: max(fitting, 1)]


def _fold_rest(cases: Sequence[ReportedCase]) -> tuple[str, str]:
    """What stands around the scenarios that are only counted."""
    if not cases:
        return "", ""
    noun = "scenario" if len(cases) == 1 else "scenarios"
    return f"\n<details><summary>{len(cases)} more {noun}: {_count_outcomes(cases)}</summary>\n\n", f"{FOLD_END}\n"


def _unfold(cases: Sequence[ReportedCase], room: int, words: int) -> list[str]:
    """Begin with a line for each case, and unfold them while there is room, the worst first; empty if the lines do not fit.

    The first one, which is open, has `words` below its heading.
    """
    texts = [render_case(case, Fold.ALL_BUT_ONE_LINE, TOP + 1) for case in cases]
    left = room - sum(len(text) + 1 for text in texts)
    if left < 0:
        return []
    for fold in (Fold.CALM_METRICS, Fold.ENVIRONMENT, Fold.NOTHING):
        for number, case in enumerate(cases):
            longer = _lay_out(case, fold, words if number == 0 else None)
            if len(longer) - len(texts[number]) <= left:
                left -= len(longer) - len(texts[number])
                texts[number] = longer
    return texts


def _lay_out(case: ReportedCase, fold: Fold, words: int | None) -> str:
    """One of several cases: the first, which has `words`, is open, the others are folded below their headings."""
    is_first = words is not None
    heading = _write_heading(case, is_first=is_first)
    body = lay_out_body(case, fold, TOP + 1, words=words, is_brief=is_first)
    return f"{heading}\n{body}" if is_first else f"{heading}\n\n{FOLD_BEGIN}{body.strip()}{FOLD_END}\n"


def _write_heading(case: ReportedCase, *, is_first: bool) -> str:
    """The heading of one of several cases. The heading of all says what the first one's would."""
    told = markdown(case.verdict.scenario) if is_first else case.headline.write_gist(markdown)
    return write_heading(case.verdict.outcome.icon, told, TOP + 1)


def _list_losses(cases: Sequence[ReportedCase], words: int) -> Comment:
    """The shortest that a comment can be: every loss, those beyond `words` in a fold, and how many scenarios had none."""
    outcome = combine_outcomes(case.verdict.outcome for case in cases)
    lost = [(case, losses) for case in cases if (losses := list_losses(case))]
    lines = [f"- {markdown(case.verdict.scenario)}: REGRESSION in {', '.join(losses)}" for case, losses in lost]
    counts = _count_outcomes([case for case in cases if not list_losses(case)])
    lines += [f"- without a regression: {counts}"] if counts else []
    headline = write_shortened([case.headline for case in cases])
    left = words - count_words(headline)
    shown = min(sum(total <= left for total in accumulate(map(count_words, lines))), ROWS_SHOWN)
    rest = write_fold(f"{len(lines) - shown} more", lines[shown:]) if lines[shown:] else ()
    return Comment(outcome=outcome, headline=headline, body="\n".join(["", *lines[:shown], *rest]) + "\n")


def _count_outcomes(cases: Sequence[ReportedCase]) -> str:
    counts = Counter(case.verdict.outcome for case in cases)
    return ", ".join(f"{counts[one]} {one}" for one in sorted(counts, key=lambda one: one.order))


def list_losses(case: ReportedCase) -> tuple[str, ...]:
    """Every metric and layer of a case that became slower, with its change, and every counter that was lost."""
    serving = (f"{wording.title(one)} {wording.percent(one.change)}" for one in case.verdict.judgements if _is_lost(one))
    layers = case.layers.judgements if case.layers else ()
    counted = (describe_count(count) for count in case.verdict.lost_counts)
    return (*serving, *counted, *(f"{markdown(one.metric)} {wording.percent(one.change)}" for one in layers if _is_lost(one)))


def _is_lost(judgement: Judgement) -> bool:
    return judgement.outcome is Outcome.REGRESSION
