"""What a proof consists of: how one arm's kernels were built, and what they answered. Checked by pydantic; loads no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

MAX_LINE = 400
MAX_FINDINGS = 2000

ArmName = Literal["base", "candidate"]
"""The side of a comparison that a working tree is."""

# `extra`: a proof may come from another job, and a field that is not known is refused.
_STRICT = ConfigDict(extra="forbid", defer_build=True)
# No control, formatting or private-use character: what is left is escaped where it is shown.
Line = Annotated[str, Field(pattern=r"^[^\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]*$", max_length=MAX_LINE)]
_Count = Annotated[int, Field(ge=0, lt=100_000, strict=True)]
_Share = Annotated[float, Field(ge=0, lt=1e15, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class KernelFinding:
    """One kernel or case, and what is wrong with it."""

    name: Line
    problem: Line


_Findings = Annotated[tuple[KernelFinding, ...], Field(max_length=MAX_FINDINGS)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class KernelError:
    """The relative error of one right answer."""

    name: Line
    error: _Share


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Build:
    """One arm's kernels, compiled ahead of time for `arch`: how many, and those whose machine code was refused."""

    arm: ArmName
    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}a?$")]
    kernels: _Count
    refused: _Findings = ()

    @property
    def name(self) -> str:
        """What was built."""
        return self.arch


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Exam:
    """One arm's answers of one implementation, compared with the oracle.

    `sound` cases are right, `worst` is the largest error among them as a share of its limit, and `errors` has the relative
    error of each. `left_out` are cases that the implementation says it does not cover, each with its reason.
    """

    arm: ArmName
    implementation: Line
    sound: _Count
    worst: _Share
    wrong: _Findings = ()
    left_out: _Findings = ()
    errors: Annotated[tuple[KernelError, ...], Field(max_length=MAX_FINDINGS)] = ()

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
        """How many cases the implementation was asked."""
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
