"""A comparison as lines for people and as one JSON document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from perfgate.engines.insides import is_release, order_version
from perfgate.resolution.diff import name_tables
from perfgate.resolution.rules import FLAG, RULES
from perfgate.resolution.table import FIRST, LAST
from perfgate.resolution.values import (
    ArmComparison,
    ArmReading,
    Case,
    Difference,
    Resolution,
    ResolveAnswer,
    Unread,
    UnreadKind,
    list_answered,
)

_SENTENCES = {
    ResolveAnswer.LOST: "something was lost; accept it with --accept 'KEY: reason', or correct it",
    ResolveAnswer.UNVERIFIED: "what could not be verified was not compared",
    ResolveAnswer.CHANGED: "nothing was lost",
    ResolveAnswer.SAME: "both arms resolve to the same",
}
_UNREAD = {
    UnreadKind.NO_ANSWER: "no answer",
    UnreadKind.UNREADABLE: "{part} could not be verified: {why}",
    UnreadKind.UNTOLD: "{part} was not told",
}


def write_lines(comparison: ArmComparison) -> Iterator[str]:
    """One line a difference, losses first, then what could not be verified and what is to be known of the arms."""
    yield f"resolve: {_name(comparison.base)} -> {_name(comparison.candidate)}"
    yield from (f"{one.kind.value}  {describe_difference(one, comparison.cases)}" for one in comparison.differences)
    yield from (f"unverified  {describe_unread(one, comparison)}" for one in comparison.unverified)
    yield from (
        f"note  {line}" for arm in (comparison.base, comparison.candidate) for line in tell_version(arm.name, arm.version)
    )
    yield comparison.sum_up(_SENTENCES)


def tell_version(name: str, version: str) -> tuple[str, ...]:
    """A line where a version is none of those that were tried."""
    mine = order_version(version)
    if not mine or (is_release(version) and order_version(FIRST) <= mine <= order_version(LAST)):
        return ()
    return (f"{name}: sglang {version} is none of {FIRST} to {LAST}, in which each part was tried; what is told was read",)


def _name(arm: Resolution) -> str:
    return f"{arm.name} (tables for Triton {arm.triton})"


def describe_difference(one: Difference, asked: tuple[Case, ...]) -> str:
    """What differs, and for which of the models and GPUs that were asked for."""
    where = describe_cases(one.cases, asked)
    means = "" if one.key.startswith(FLAG) else f" ({RULES[one.key].means})" if one.key in RULES else ""
    reason = f"; accepted: {one.reason}" if one.reason else ""
    return f"{one.key}{means}: {one.base} -> {one.candidate} [{where}]{reason}"


def describe_unread(one: Unread, comparison: ArmComparison) -> str:
    """What an arm could not read or did not report, and for which models and GPUs."""
    answered = list_answered(comparison.base, comparison.candidate)
    return f"{one.arm}: {_UNREAD[one.kind].format(part=one.part, why=one.why)} ({describe_cases(one.cases, answered)})"


def describe_cases(cases: tuple[Case, ...], asked: tuple[Case, ...]) -> str:
    """Models and GPUs in few words, out of those that were asked for."""
    if set(cases) == set(asked):
        return "all models on all GPUs" if len(asked) > 1 else " on ".join(asked[0])
    by_model: dict[str, list[str]] = defaultdict(list)
    for model, gpu in cases:
        by_model[model].append(gpu)
    by_gpus: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for model, gpus in by_model.items():
        by_gpus[tuple(gpus)].append(model)
    return "; ".join(f"{', '.join(models)} on {', '.join(gpus)}" for gpus, models in by_gpus.items())


def write_document(comparison: ArmComparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "schema": 1,
        "answer": comparison.answer.value,
        "base": _describe_arm(comparison.base),
        "candidate": _describe_arm(comparison.candidate),
        "cases": [list(case) for case in comparison.cases],
        "differences": [asdict(one) for one in comparison.differences],
        "unverified": [describe_unread(one, comparison) for one in comparison.unverified],
    }


def _describe_arm(arm: Resolution) -> dict[str, Any]:
    facts = {name: getattr(arm, name) for name in ("name", "version", "torch", "triton")}
    facts |= {"notes": tell_version(arm.name, arm.version), "stand_ins": arm.stand_ins}
    return facts | {"choices": {f"{model}@{gpu}": _list_choices(one) for (model, gpu), one in arm.readings.items()}}


def _list_choices(reading: ArmReading) -> dict[str, Any]:
    return {key: name_tables(value) if isinstance(value, tuple) else value for key, value in reading.choices.items()}
