"""The confidence in a verdict, in words: its evidence, its rate of false alarms, and the smallest loss that it finds."""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.core import Arm, Judgement, Outcome, Role, Verdict
from perfgate.evidence import Session
from perfgate.report import wording
from perfgate.storage.rounding import format_percent

POWER = "9 times in 10"


def describe_confidence(verdict: Verdict, session: Session) -> str:
    """Blocks, machine time and alpha, in one sentence without its full stop."""
    blocks = f"{verdict.blocks} block{'' if verdict.blocks == 1 else 's'} of fresh servers"
    if set(session.fingerprints) == {Arm.CANDIDATE}:
        blocks = "the candidate alone against stored noise"
    evidence = f"{blocks} ({verdict.windows} judged windows), {_measure_minutes(session)}"
    alpha = verdict.policy.get("alpha")
    if verdict.outcome is Outcome.INVALID or not isinstance(alpha, float):
        return evidence
    condition = "once the machine is calibrated, " if verdict.advisory else ""
    share = format_percent(alpha, None)
    return f"{evidence}; alpha {share}: {condition}at most {share} of unchanged builds are called a REGRESSION"


def describe_sensitivity(judgements: Iterable[Judgement]) -> str:
    """The smallest loss of each gating metric that this much evidence finds with a power of 90 %."""
    return ", ".join(
        f"{wording.title(judgement)} {wording.loss(judgement.metric, judgement.smallest_effect)}"
        for judgement in judgements
        if judgement.gating and judgement.smallest_effect is not None
    )


def describe_spent(session: Session) -> str:
    """What became of the machine time, and how many windows do not count; empty where nothing was measured."""
    if not session.windows:
        return ""
    extra = sum(window.role is not Role.MEASURED for window in session.windows)
    discarded = f"{extra} of {len(session.windows)} windows discarded as warm-up or run again"
    if session.superseded:
        discarded += f", {len(session.superseded)} more cut off by a break and measured anew"
    timing = session.timing
    if timing is None:
        return discarded
    shares = (("measuring", timing.measuring_s), ("warming up", timing.warming_s), ("starting servers", timing.starting_s))
    spent = ", ".join(f"{format_percent(seconds / timing.took_s, 0)} {what}" for what, seconds in shares if seconds > 0)
    return f"{spent}; {discarded}"


def _measure_minutes(session: Session) -> str:
    if not session.windows:
        return "no window finished"
    kind = "CPU" if _is_cpu(session) else "GPU"
    if session.timing is not None:
        return f"{session.timing.took_s / 60:.1f} {kind}-minutes"
    seconds = sum(window.ended_s - window.begun_s for window in session.windows)
    return f"{seconds / 60:.1f} {kind}-minutes in windows"


def _is_cpu(session: Session) -> bool:
    return all(fingerprint.facts.get("gpu", "absent") == "absent" for fingerprint in session.fingerprints.values())
