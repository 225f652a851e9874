"""A comparison as lines for people and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from perfgate.resolution.diff import describe_cases
from perfgate.resolution.rules import FLAG, RULES
from perfgate.resolution.values import ArmComparison, Difference, Resolution, ResolveAnswer

_SENTENCES = {
    ResolveAnswer.LOST: "something was lost; accept it with --accept 'KEY: reason', or mend it",
    ResolveAnswer.UNVERIFIED: "what could not be verified was not compared",
    ResolveAnswer.CHANGED: "nothing was lost",
    ResolveAnswer.SAME: "both arms resolve to the same",
}


def write_lines(comparison: ArmComparison) -> Iterator[str]:
    """One line a difference, losses first, then what could not be verified and what is to be known of the arms."""
    yield f"resolve: {_name(comparison.base)} -> {_name(comparison.candidate)}"
    yield from (write_difference(one, comparison) for one in comparison.differences)
    yield from (f"unverified  {line}" for line in comparison.unverified)
    yield from (f"note  {line}" for arm in (comparison.base, comparison.candidate) for line in arm.notes)
    yield comparison.sum_up(_SENTENCES)


def _name(arm: Resolution) -> str:
    return f"{arm.name} (tables for Triton {arm.triton})"


def write_difference(one: Difference, comparison: ArmComparison) -> str:
    """The line of one difference."""
    where = describe_cases(one.cases, comparison.cases)
    means = "" if one.key.startswith(FLAG) else f" ({RULES[one.key].means})" if one.key in RULES else ""
    reason = f"; accepted: {one.reason}" if one.reason else ""
    return f"{one.kind.value}  {one.key}{means}: {one.base} -> {one.candidate} [{where}]{reason}"


def write_document(comparison: ArmComparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "schema": 1,
        "answer": comparison.answer.value,
        "base": _describe_arm(comparison.base),
        "candidate": _describe_arm(comparison.candidate),
        "cases": [list(case) for case in comparison.cases],
        "differences": [asdict(one) for one in comparison.differences],
        "unverified": list(comparison.unverified),
    }


def _describe_arm(arm: Resolution) -> dict[str, Any]:
    facts = {name: getattr(arm, name) for name in ("name", "version", "torch", "triton", "notes", "stand_ins")}
    readings = {f"{model}@{gpu}": dict(reading.choices) for (model, gpu), reading in arm.readings.items()}
    return facts | {"choices": readings}
