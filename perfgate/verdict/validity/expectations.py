"""Did the path under test run? A candidate that quietly fell back measures something else, and looks like no change at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfgate.core import Arm
from perfgate.evidence import KernelProfile, KernelTrace, Seen
from perfgate.scenario.safeguards import Expect
from perfgate_moe.engines.switch import PROOF, VARIABLE

_ADVICE = "what was measured is not what was asked for; check the candidate's options and its log"
_BRANCH_ADVICE = f"a branch of SGLang that reads {VARIABLE} itself needs its own --expect-log or --expect-kernel"
_SHOWN_KERNELS, _SHOWN_CHARACTERS = 3, 60

MIN_ADDED_RATIO = 1.5
"""How many times as often a step a kernel runs in the candidate that its path added. Both arms profile as many steps, but the
share of prefill among them moves by a few percent."""


def check_expectations(expect: Expect, seen: Seen) -> Iterator[str]:
    """Name every expectation that the candidate did not meet, by what it showed after the first block."""
    for pattern in expect.log:
        if pattern not in seen.log:
            yield describe_missing(pattern)
    if expect.needs_profile and seen.problem:
        yield f"candidate: {seen.problem}"
    elif expect.needs_profile:
        yield from _check_kernels(expect, seen.profiles)


def describe_missing(pattern: str) -> str:
    """Say that no line of the candidate's log matches, and what to do."""
    advice = f"{_ADVICE}; {_BRANCH_ADVICE}" if pattern == PROOF else _ADVICE
    return f"candidate: no line of its log matches {pattern!r}: {advice}"


def _check_kernels(expect: Expect, profiles: Sequence[KernelProfile]) -> Iterator[str]:
    found = {profile.arm: profile for profile in profiles}
    for arm in Arm:
        if arm not in found and (arm is Arm.CANDIDATE or expect.is_difference):
            yield f"{arm.value}: it was never profiled, so it is unknown whether the path under test ran; measure again"
            return
    profile = found[Arm.CANDIDATE]
    trace = profile.trace
    if trace is None:
        yield f"candidate: {profile.problem}"
        return
    if expect.is_difference:
        base = found[Arm.BASE]
        if base.trace is None:
            yield f"candidate: {base.problem}"
            return
        yield from _check_difference(expect, (base, base.trace), (profile, trace))
    for pattern in expect.kernels:
        if not _match(pattern, trace):
            ran = f"{len(trace.spent)} (most time: {_rank(trace)})"
            yield f"{profile.name}: no {trace.kind} matches {pattern!r} among {ran}: {_ADVICE}"
    for pattern in expect.absent:
        if names := _match(pattern, trace):
            count = sum(trace.spent[name].count for name in names)
            shown = names[0][:_SHOWN_CHARACTERS]
            yield f"{profile.name}: {trace.kind} {shown} ran {count} times where {pattern!r} must not run: {_ADVICE}"


def _check_difference(
    expect: Expect, bases: tuple[KernelProfile, KernelTrace], candidates: tuple[KernelProfile, KernelTrace]
) -> Iterator[str]:
    (base, before), (candidate, after) = bases, candidates
    for pattern in expect.removed:
        if not _match(pattern, before):
            yield (
                f"{base.name}: no {before.kind} matches {pattern!r}, which the candidate was to do without, so nothing could "
                f"change: does the model take this path at all? {_ADVICE}"
            )
        elif names := _match(pattern, after):
            shown = names[0][:_SHOWN_CHARACTERS]
            yield f"{candidate.name}: {after.kind} {shown} still runs where {pattern!r} of the base was to be gone: {_ADVICE}"
    for pattern in expect.added:
        left, right = _count(pattern, before) / base.steps, _count(pattern, after) / candidate.steps
        if right <= 0 or right < MIN_ADDED_RATIO * left:
            yield (
                f"{candidate.name}: {after.kind}s that match {pattern!r} ran {right:.1f} times a step, {left:.1f} times in the "
                f"base, where the candidate was to run more: {_ADVICE}"
            )


def _count(pattern: str, trace: KernelTrace) -> int:
    return sum(trace.spent[name].count for name in _match(pattern, trace))


def _match(pattern: str, trace: KernelTrace) -> list[str]:
    return sorted(name for name in trace.spent if re.search(pattern, name))


def _rank(trace: KernelTrace) -> str:
    names = sorted(trace.spent, key=lambda name: -trace.spent[name].time_us)
    return ", ".join(name[:_SHOWN_CHARACTERS] for name in names[:_SHOWN_KERNELS])
