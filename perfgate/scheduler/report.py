"""A comparison of host work as lines for people and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, get_args

from perfgate.resolution.values import ResolveAnswer
from perfgate.results.profiling.host_counts import HostCount, HostPart
from perfgate.scheduler.judge import PARTS, RULES, UNITS
from perfgate.scheduler.values import CostComparison, CostDifference, CostGap, GapKind, HostWork
from perfgate.storage.rounding import format_percent

_SENTENCES = {
    ResolveAnswer.LOST: "the host does more; accept it with --accept 'KEY: reason', or correct it",
    ResolveAnswer.UNVERIFIED: "what did not repeat was not compared",
    ResolveAnswer.CHANGED: "no limit was passed",
    ResolveAnswer.SAME: "the host does the same in both arms",
}


_GAPS = {
    GapKind.MISSING: "{arm} has no reading of it; run it again",
    GapKind.UNSTEADY: "two runs of {arm} differ; what changes from run to run cannot be compared",
    GapKind.OTHER_WINDOWS: "the arms have different numbers of windows; run them again",
    GapKind.UNEVEN: "its change differs between windows; run it again without other load on this machine",
}


def write_lines(comparison: CostComparison) -> Iterator[str]:
    """What both arms cost a unit, a line a part; then one line a difference, losses first; the answer."""
    base, candidate = comparison.base, comparison.candidate
    yield f"scheduler: {base.name} -> {candidate.name}"
    for part, name in PARTS.items():
        for unit, words in UNITS.items():
            yield f"  {name}, {words}: {_tell_cost(base, f'{part}.{unit}')} -> {_tell_cost(candidate, f'{part}.{unit}')}"
    yield from (_write_difference(one) for one in comparison.differences)
    yield from (f"unverified  {describe_gap(gap)}" for gap in comparison.unverified)
    yield comparison.sum_up(_SENTENCES)


def _tell_cost(arm: HostWork, key: str) -> str:
    instructions, cpu_us = (arm.find_value(f"{key}.{name}") for name in ("instructions", "cpu_us"))
    return f"{instructions / 1e6:.3f} M instructions, {cpu_us:.0f} us"


def _write_difference(one: CostDifference) -> str:
    share = _tell_share(one.base, one.more)
    reason = f"; accepted: {one.reason}" if one.reason else ""
    return f"{one.kind.value}  {one.key} ({RULES[one.key].means}): {one.base:,.10g} {one.more:+,.10g}{share}{reason}"


def _tell_share(base: float, more: float) -> str:
    return f" ({format_percent(more / base, is_signed=True)})" if base else ""


def describe_key(key: str) -> str:
    """A key in words: which part, what was counted, and a unit of what."""
    part, unit, _ = key.split(".")
    name = PARTS.get(part, part)
    return f"{name}, {RULES[key].means}" if unit not in UNITS else f"{name}, {RULES[key].means} {UNITS[unit]}"


def write_amounts(base: float, more: float) -> tuple[str, str]:
    """What the base has and what the candidate has, with the share by which it differs."""
    before, after = (f"{round(value, 1):,.12g}" for value in (base, base + more))
    return before, f"{after}{_tell_share(base, more)}"


def describe_gap(gap: CostGap) -> str:
    """One line on a key that cannot be compared: why, and what to do."""
    return f"{gap.key}: {_GAPS[gap.kind].format(arm=gap.arm)}"


def list_counts(comparison: CostComparison) -> Iterator[HostCount]:
    """Instructions of a decode step in each part, but for parts whose counts did not repeat."""
    parts: tuple[HostPart, ...] = get_args(HostPart)
    for part in parts:
        key = f"{part}.decode_step.instructions"
        if key not in {gap.key for gap in comparison.unverified}:
            base, candidate = (arm.find_value(key) for arm in (comparison.base, comparison.candidate))
            yield HostCount(part=part, base=base, candidate=candidate)


def write_document(comparison: CostComparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "schema": 1,
        "answer": comparison.answer.value,
        "base": asdict(comparison.base),
        "candidate": asdict(comparison.candidate),
        "differences": [asdict(one) for one in comparison.differences],
        "unverified": [describe_gap(gap) for gap in comparison.unverified],
    }
