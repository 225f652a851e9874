"""What is known of the kernels before a window is measured: how both arms' were built, and what they answer.

Base and candidate are put to the same questions, since an engine may have mistakes of old that no change is to blame for: what
the candidate gets wrong and the base does not voids a session, as a fast kernel that is wrong must not pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from perfgate.core import Arm
from perfgate.storage.rounding import format_percent

MAX_LINE = 400
MAX_FINDINGS = 2000

_STRICT = ConfigDict(extra="forbid", defer_build=True)
# No control, formatting or private-use character: what is left is escaped where it is shown.
Line = Annotated[str, Field(pattern=r"^[^\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]*$", max_length=MAX_LINE)]
_Count = Annotated[int, Field(ge=0, lt=100_000, strict=True)]
_Share = Annotated[float, Field(ge=0, lt=1e15, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Finding:
    """One kernel or case, and what is wrong with it."""

    name: Line
    problem: Line


_Findings = Annotated[tuple[Finding, ...], Field(max_length=MAX_FINDINGS)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Build:
    """One arm's kernels, compiled ahead of time for `arch`: how many, and those whose machine code was refused."""

    arm: Arm
    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}a?$")]
    kernels: _Count
    refused: _Findings = ()

    @property
    def name(self) -> str:
        """What was built."""
        return self.arch


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Exam:
    """One arm's answers of one implementation, held against the oracle.

    `sound` cases are right, `worst` is the largest error among them as a share of what it may be. `left_out` are cases that the
    implementation says it does not cover, each with its reason.
    """

    arm: Arm
    implementation: Line
    sound: _Count
    worst: _Share
    wrong: _Findings = ()
    left_out: _Findings = ()

    @property
    def name(self) -> str:
        """What was examined."""
        return self.implementation

    @property
    def judged(self) -> int:
        """How many cases were answered."""
        return self.sound + len(self.wrong)

    @property
    def asked(self) -> int:
        """How many cases were put to it."""
        return self.judged + len(self.left_out)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class KernelProof:
    """The builds and exams of both arms.

    `wheel` names the candidate's own wheel of compiled kernels, where the sources of the arms differ and both were built.
    `failure` says why nothing could be asked.
    """

    builds: Annotated[tuple[Build, ...], Field(max_length=16)] = ()
    exams: Annotated[tuple[Exam, ...], Field(max_length=16)] = ()
    wheel: Line = ""
    failure: Line = ""


One = TypeVar("One", Build, Exam)


def find_problems(proof: KernelProof | None) -> Iterator[str]:
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
    said = [_describe_build(build) for build in proof.builds if build.arm is Arm.CANDIDATE]
    said += [_describe_exam(exam) for exam in proof.exams if exam.arm is Arm.CANDIDATE]
    return "; ".join([*said, *([f"{proof.wheel} built anew, as its sources differ"] if proof.wheel else [])])


def _describe_build(build: Build) -> str:
    refused = f"{len(build.refused)} refused" if build.refused else "none refused"
    return f"{build.kernels} compiled for {build.arch}, {refused}"


def _describe_exam(exam: Exam) -> str:
    left_out = f", {len(exam.left_out)} not covered" if exam.left_out else ""
    worst = f" (largest error {format_percent(exam.worst, 0)} of its limit)" if exam.sound else ""
    return f"{exam.implementation} right in {exam.sound} of {exam.judged} cases against the float64 oracle{worst}{left_out}"


def _pair(found: Sequence[One]) -> list[tuple[One, One]] | None:
    """Base and candidate by turns, by what was built or examined; None where an arm has no partner, or two."""
    sides = [{one.name: one for one in found if one.arm is arm} for arm in Arm]
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
        told = f"{candidate.asked} cases where the base was asked {base.asked}"
        yield f"{who} was asked {told}; run `perfgate kernels prove` anew"
        return
    # Where nothing is right in an arm, what went wrong is the exam.
    for exam in (base, candidate):
        if not exam.sound:
            first = next(iter((*exam.wrong, *exam.left_out)), None)
            reason = f": {first.problem}" if first else ""
            yield f"kernels: {exam.implementation} of the {exam.arm.value} is right in no case{reason}"
            return
    if new := _find_new(base.wrong, candidate.wrong):
        yield f"{who} is wrong in {len(new)} of {candidate.judged} cases, first in {new[0].name}: {new[0].problem}"
    if lost := _find_new(base.left_out, candidate.left_out):
        yield f"{who} leaves out {len(lost)} cases that the base answers, first {lost[0].name}: {lost[0].problem}"


def _find_new(before: Sequence[Finding], now: Sequence[Finding]) -> list[Finding]:
    known = {one.name for one in before}
    return [one for one in now if one.name not in known]
