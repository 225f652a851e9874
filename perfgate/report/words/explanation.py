"""Why one metric was judged as it was, in five sentences: the change, its bounds, the evidence, what went wrong, what now."""

from __future__ import annotations

from collections.abc import Iterator

from perfgate.core import Judgement, Outcome, Role, Verdict
from perfgate.evidence import Session
from perfgate.report.words import wording
from perfgate.report.words.advice import list_outlooks
from perfgate.report.words.remedies import find_entry, name_remedies
from perfgate.storage.rounding import format_count, format_percent
from perfgate.verdict.validity.same_work import describe_other_work

_BECAUSE = {
    Outcome.PASS: "all of it ends before the margin, and the estimate stays within half of it",
    Outcome.IMPROVED: "all of it is a gain, beyond half a margin at every look",
    Outcome.REGRESSION: "the loss is surely above zero, and estimated at more than half the margin",
    Outcome.INCONCLUSIVE: "it neither excludes a loss as large as the margin nor proves one of more than half of it",
}
_NEXT = {
    Outcome.PASS: "Nothing has to be done about it.",
    Outcome.IMPROVED: "Nothing has to be done about it; once merged, `perfgate baseline add` keeps the gain as the new level.",
    Outcome.REGRESSION: "Find the cause (`perfgate profile`, `perfgate bisect`), or have the loss accepted with a reason "
    '(`/perfgate accept "why"` on the pull request).',
    Outcome.INCONCLUSIVE: "Measure again with more blocks (--blocks){outlook}; see {remedies}.",
    Outcome.INVALID: "Remove what voided the session ({remedies}), then measure again.",
}


def explain_invalid(verdict: Verdict) -> tuple[str, ...]:
    """Why a session is INVALID, for a terminal: the cause, what else was found, and what to do."""
    first, *others = verdict.reasons or ("nothing was said of why",)
    entry = find_entry(first)
    return (
        f"{verdict.outcome}: the measurement cannot be trusted, so it says nothing of the change.",
        f"Cause: {first}.",
        *(f"Also found: {other}." for other in others),
        *(("What to do:", *entry.lines) if entry else ()),
        f"More: {name_remedies(verdict.outcome, verdict.reasons)}",
    )


def explain_metric(judgement: Judgement, verdict: Verdict, session: Session) -> tuple[str, ...]:
    """Five sentences on one judgement of a verdict, for a terminal."""
    return (
        _tell_change(judgement),
        _tell_bounds(judgement),
        _tell_evidence(verdict),
        _tell_mishaps(verdict, session),
        _tell_next(judgement, verdict, session),
    )


def _tell_change(judgement: Judgement) -> str:
    title = wording.title(judgement)
    if judgement.change is None:
        return f"{title} was not judged: {judgement.outcome}."
    levels = f"from {wording.value(judgement.metric, judgement.base)} to {wording.value(judgement.metric, judgement.candidate)}"
    sense = "no change" if wording.percent(judgement.change) == wording.percent(0.0) else wording.sense(judgement)
    gating = "" if judgement.gating else ", and it only informs"
    return f"{title} went {levels}, {wording.percent(judgement.change)} ({sense}): {judgement.outcome}{gating}."


def _tell_bounds(judgement: Judgement) -> str:
    band = wording.band(judgement)
    limits = f"the margin of {wording.limit(judgement)} and " + (
        "no stored noise band" if judgement.band is None else f"a stored noise band of {band}"
    )
    if judgement.low is None or judgement.high is None:
        return f"There is no interval to hold against {limits}."
    because = _BECAUSE.get(judgement.outcome, "the evidence cannot be trusted")
    line = "" if judgement.fails_from is None else f" It fails from {wording.line(judgement)}"
    found = (
        ""
        if judgement.smallest_effect is None
        else f", and a loss is found nine times in ten from {wording.found_from(judgement)}"
    )
    more = f"{line}{found}." if line else ""
    return f"Its 95 % bounds, {wording.interval(judgement)}, stand against {limits}: {because}.{more}"


def _tell_evidence(verdict: Verdict) -> str:
    looks, share = verdict.policy.get("looks"), verdict.policy.get("alpha_look")
    blocks = f"{format_count(verdict.blocks, 'block')} of fresh servers"
    if verdict.policy.get("stage") == 1:
        blocks = "the candidate alone, held against stored sessions"
    rule = f"looks were planned after {looks} blocks" if looks else "no look was planned"
    budget = f", each with at most {format_percent(share, 2)} false alarms" if isinstance(share, float) else ""
    return f"It rests on {blocks} and {verdict.windows} judged windows; {rule}{budget}."


def _tell_mishaps(verdict: Verdict, session: Session) -> str:
    found = list(_list_mishaps(verdict, session))
    return f"{'; '.join(found)}." if found else "No judged window was measured again, cut off or void."


def _list_mishaps(verdict: Verdict, session: Session) -> Iterator[str]:
    again = sum(window.role is Role.RERUN for window in session.windows)
    if again:
        counted = (window.telemetry for window in session.windows if window.role is not Role.WARMUP)
        told = "stalled or held other work" if any(map(describe_other_work, counted)) else "stalled"
        yield f"{format_count(again, 'window')} {told} and had to be measured again"
    if session.superseded:
        yield f"{len(session.superseded)} windows were cut off by a break and measured anew"
    if verdict.outcome is Outcome.INVALID:
        more = f" (and {len(verdict.reasons) - 1} more)" if len(verdict.reasons) > 1 else ""
        yield f"The session is void: {verdict.reasons[0].rstrip('.')}{more}"


def _tell_next(judgement: Judgement, verdict: Verdict, session: Session) -> str:
    notes = f" ({'; '.join(judgement.notes)})" if judgement.notes else ""
    if not judgement.gating:
        return f"It cannot fail the change, so nothing has to be done about it{notes}."
    outlook = "".join(f": `{command.line}` says what they find" for command in list_outlooks(verdict, session))
    advice = _NEXT[judgement.outcome].format(remedies=name_remedies(judgement.outcome, verdict.reasons), outlook=outlook)
    return f"{advice[:-1]}{notes}."
