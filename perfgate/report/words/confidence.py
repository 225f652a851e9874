"""The confidence in a verdict, in words: its evidence, its counted rate of false alarms, and what a PASS excludes."""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.core import Arm, Outcome, Role, Verdict
from perfgate.evidence import Session
from perfgate.report.words import wording
from perfgate.report.words.families import Family
from perfgate.stats.binomial import bound_rate
from perfgate.storage.rounding import format_count, format_percent

COUNTED = {"nvidia-h200-141gb": (0, 59), "nvidia-h100-80gb-hbm3": (0, 21)}
"""False alarms among verdicts on equal arms that share no block, by kind of machine: docs/evidence/error-rates.md has how they
were counted. A kind of machine that is missing was never counted."""


def describe_evidence(verdict: Verdict, session: Session) -> str:
    """Blocks and machine time, without a full stop; of a session that went on after the look that decided, those judged."""
    begun = len({window.block for window in session.windows})
    blocks = format_count(verdict.blocks, "block")
    if 0 < verdict.blocks < begun:
        blocks = f"{verdict.blocks} of {format_count(begun, 'block')} judged"
    if set(session.fingerprints) == {Arm.CANDIDATE}:
        blocks = "the candidate alone against stored noise"
    return f"{blocks}, {measure_minutes(session)}"


def describe_rate(hardware: str) -> str:
    """How often the rule called an unchanged build slower on this kind of machine, as it was counted.

    The bound has 95 % confidence, by Clopper and Pearson.
    """
    if hardware not in COUNTED:
        return "False alarms: not counted on such machines."
    alarms, verdicts = COUNTED[hardware]
    bound = format_percent(bound_rate(alarms, verdicts))
    return f"False alarms on such machines: {alarms} of {verdicts} equal builds, at most {bound}."


def describe_exclusion(verdict: Verdict, families: Iterable[Family]) -> str:
    """The largest loss of each gating metric that a PASS excludes, over all its looks; empty for another outcome."""
    if verdict.outcome not in (Outcome.PASS, Outcome.IMPROVED):
        return ""
    gating = [family.judgement for family in families if family.judgement.gating]
    found = [(one, one.excluded) for one in gating if one.excluded is not None]
    bounds = [f"{wording.title(one)} {wording.excluded(one)}" for one, bound in found if bound > 0]
    gains = [wording.title(one) for one, bound in found if bound <= 0]
    told = [f"{', '.join(bounds)}: beyond these a loss is excluded"] if bounds else []
    told += [f"any loss of {', '.join(gains)} is excluded"] if gains else []
    looks = str(verdict.policy.get("looks", "")).count(",") + 1
    over = "" if looks == 1 else f" over all {looks} looks"
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}, each with 95 % confidence{over}." if text else ""


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
    known = (("measuring", timing.measuring_s), ("warming up", timing.warming_s), ("starting servers", timing.starting_s))
    shares = (*known, ("between them", timing.took_s - sum(seconds for _, seconds in known)))
    told = ((seconds / timing.took_s, what) for what, seconds in shares)
    # A share below half a percent would read as none.
    spent = ", ".join(f"{format_percent(share, 0)} {what}" for share, what in told if share >= 0.005)
    return f"{spent}; {discarded}"


def measure_minutes(session: Session) -> str:
    """The machine time of a session, that of all its GPUs."""
    if not session.windows:
        return "no window finished"
    kind = "CPU" if _is_cpu(session) else "GPU"
    where = f" on {session.gpus} GPUs" if session.gpus > 1 else ""
    if session.timing is not None:
        return f"{session.timing.took_s * session.gpus / 60:.1f} {kind}-minutes{where}"
    seconds = sum(window.ended_s - window.begun_s for window in session.windows)
    return f"{seconds * session.gpus / 60:.1f} {kind}-minutes in windows{where}"


def _is_cpu(session: Session) -> bool:
    return all(fingerprint.facts.get("gpu", "absent") == "absent" for fingerprint in session.fingerprints.values())
