"""What a proof consists of: how one arm's kernels were built, what they answered, how long they took. Loads no torch."""

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

MIN_ROUNDS, MAX_ROUNDS = 10, 64
MAX_TIMED_LAYERS, MAX_TIMED_BLOCKS = 32, 8
TIMED_NAMES = (
    "gpt-oss-20b",
    "qwen3-30b",
    "qwen3-235b-tp8",
    "deepseek-v3-tp8",
    "narrow",
    "deepseek-v3-tp8-fp8",
)
"""The layers that are timed under a name; any other goes by its sizes. Times carry no text that a change chose."""
_SIZES = r"E=[0-9]{1,4},k=[0-9]{1,3},H=[0-9]{1,5},I=[0-9]{1,5}(?:,dtype=(?:bfloat16|float16|float32))?"
TIMED_SHAPE = rf"^(?:{'|'.join(TIMED_NAMES)}|{_SIZES})$"
# Beyond these no layer was timed, and ratios of two leave the range of doubles.
_Microseconds = Annotated[float, Field(ge=1e-6, le=1e12)]
_Samples = Annotated[tuple[_Microseconds, ...], Field(fail_fast=True, min_length=MIN_ROUNDS, max_length=MAX_ROUNDS)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class KernelFinding:
    """One kernel or case, and what is wrong with it."""

    name: Line
    problem: Line


_Findings = Annotated[tuple[KernelFinding, ...], Field(fail_fast=True, max_length=MAX_FINDINGS)]


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
    errors: Annotated[tuple[KernelError, ...], Field(fail_fast=True, max_length=MAX_FINDINGS)] = ()

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
class TimedLayer:
    """One layer at one number of tokens in both arms: microseconds, one a round of base, base once more, and candidate."""

    shape: Annotated[str, Field(pattern=TIMED_SHAPE)]
    tokens: Annotated[int, Field(ge=1, lt=100_000, strict=True)]
    base: _Samples
    again: _Samples
    candidate: _Samples

    def __post_init__(self) -> None:
        """Raise ValueError for sides of different lengths: rounds are compared pair by pair."""
        if not len(self.base) == len(self.again) == len(self.candidate):
            raise ValueError("sides of different lengths")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TimedBlock:
    """One start of each arm, which timed their layers by turns."""

    layers: Annotated[tuple[TimedLayer, ...], Field(fail_fast=True, min_length=1, max_length=MAX_TIMED_LAYERS)]

    def __post_init__(self) -> None:
        """Raise ValueError for a layer that is timed twice."""
        if len({(one.shape, one.tokens) for one in self.layers}) < len(self.layers):
            raise ValueError("a layer that is timed twice")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class KernelProof:
    """The builds and exams of both arms, and what their layers took in `times`, where that was measured.

    `wheel` names the candidate's own wheel of compiled kernels, where the sources of the arms differ and both were built.
    `failure` says why nothing could be asked.
    """

    builds: Annotated[tuple[Build, ...], Field(fail_fast=True, max_length=16)] = ()
    exams: Annotated[tuple[Exam, ...], Field(fail_fast=True, max_length=16)] = ()
    wheel: Line = ""
    failure: Line = ""
    times: Annotated[tuple[TimedBlock, ...], Field(fail_fast=True, max_length=MAX_TIMED_BLOCKS)] = ()
