"""What is known of the kernels before a window is measured: how both arms' were built, and what they answer.

Both arms compute the same cases, since an engine may have mistakes that the change did not bring: what the candidate gets wrong
and the base does not voids a session, as a fast kernel that is wrong must not pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TypeVar

from perfgate.core import Arm
from perfgate.storage.rounding import format_percent
from perfgate_moe.proof.values import Build, Exam, KernelFinding, KernelProof

One = TypeVar("One", Build, Exam)

MEDIAN_TOLD, LARGEST_TOLD = 1.05, 1.25
"""From which candidate's error over the base's on the report says so: over all cases, and in one of them.

Equal kernels have equal errors. SGLang's fused sum, which rounds after each expert, has 1.16 times its plain sum's in the
median of 249 cases, and 1.49 times at most.
"""


def check_kernels(proof: KernelProof | None) -> Iterator[str]:
    """Say what the candidate's kernels do wrong that the base's do not; each voids the session. Nothing without a proof."""
    if proof is None:
        return
    if proof.failure:
        yield f"kernels: {proof.failure}"
        return
    builds, exams = _pair(proof.builds), _pair(proof.exams)
    if not builds or not exams:
        yield "kernels: the arms were not built and examined alike; run `perfgate kernels prove` anew"
        return
    for base, candidate in builds:
        yield from _judge_build(base, candidate)
    for asked, answered in exams:
        yield from _judge_exam(asked, answered)


def describe_proof(proof: KernelProof | None) -> str:
    """Say in a sentence how the candidate's kernels were built and what they answer; empty without a proof."""
    if proof is None:
        return ""
    if proof.failure:
        return "not examined"
    sentences = [_describe_build(build) for build in proof.builds if build.arm == Arm.CANDIDATE.value]
    sentences += [_describe_exam(exam) for exam in proof.exams if exam.arm == Arm.CANDIDATE.value]
    sentences += [told for base, candidate in _pair(proof.exams) or [] if (told := _describe_loss(base, candidate))]
    return "; ".join([*sentences, *([f"{proof.wheel} built anew, as its sources differ"] if proof.wheel else [])])


def _describe_build(build: Build) -> str:
    refused = f"{len(build.refused)} refused" if build.refused else "none refused"
    return f"{build.kernels} compiled for {build.arch}, {refused}"


def _describe_exam(exam: Exam) -> str:
    left_out = f", {len(exam.left_out)} not covered" if exam.left_out else ""
    worst = f" (largest error {format_percent(exam.worst, 0)} of its limit)" if exam.sound else ""
    return f"{exam.implementation} right in {exam.sound} of {exam.judged} cases against the float64 oracle{worst}{left_out}"


def _describe_loss(base: Exam, candidate: Exam) -> str:
    """What the candidate lost of the base's accuracy within the limits; empty where it is about as accurate."""
    before = {one.name: one.error for one in base.errors}
    ratios = sorted((one.error / before[one.name], one.name) for one in candidate.errors if before.get(one.name))
    if not ratios:
        return ""
    middle, (largest, case) = median(ratio for ratio, _ in ratios), ratios[-1]
    if middle < MEDIAN_TOLD and largest < LARGEST_TOLD:
        return ""
    times = f"{middle:.2f} times the base's in the median of {len(ratios)} cases, {largest:.2f} times in {case}"
    return f"{candidate.implementation} is less accurate than the base: its error is {times}"


def _pair(found: Sequence[One]) -> list[tuple[One, One]] | None:
    """Base and candidate by turns, by what was built or examined; None where an arm has no partner, or two."""
    sides = [{one.name: one for one in found if one.arm == arm.value} for arm in Arm]
    if sides[0].keys() != sides[1].keys() or sum(map(len, sides)) < len(found):
        return None
    return [(one, sides[1][name]) for name, one in sides[0].items()]


def _judge_build(base: Build, candidate: Build) -> Iterator[str]:
    if not candidate.kernels:
        yield f"kernels: none of the candidate was built for {candidate.arch}; `perfgate kernels build --checkout` says why"
    for one in _find_new(base.refused, candidate.refused):
        yield f"kernels: the machine code of the candidate's {one.name} was refused: {one.problem}"


def _judge_exam(base: Exam, candidate: Exam) -> Iterator[str]:
    who = f"kernels: the candidate's {candidate.implementation}"
    if base.asked != candidate.asked:
        counts = f"{candidate.asked} cases where the base was asked {base.asked}"
        yield f"{who} was asked {counts}; run `perfgate kernels prove` anew"
        return
    # Where nothing is right in an arm, what went wrong is the exam.
    for exam in (base, candidate):
        if not exam.sound:
            first = next(iter((*exam.wrong, *exam.left_out)), None)
            reason = f": {first.problem}" if first else ""
            yield f"kernels: {exam.implementation} of the {exam.arm} is right in no case{reason}"
            return
    if new := _find_new(base.wrong, candidate.wrong):
        yield f"{who} is wrong in {len(new)} of {candidate.judged} cases, first in {new[0].name}: {new[0].problem}"
    if lost := _find_new(base.left_out, candidate.left_out):
        yield f"{who} leaves out {len(lost)} cases that the base answers, first {lost[0].name}: {lost[0].problem}"


def _find_new(before: Sequence[KernelFinding], now: Sequence[KernelFinding]) -> list[KernelFinding]:
    known = {one.name for one in before}
    return [one for one in now if one.name not in known]
