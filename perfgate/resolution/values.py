"""What an arm resolved to, and how two arms differ, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, Generic, Protocol, TypeVar

from perfgate.core import Arm

Case = tuple[str, str]
"""A model on a GPU, by their names."""


class Kind(StrEnum):
    """What a difference means: a loss fails unless it was accepted, a change never fails."""

    LOST = "lost"
    ACCEPTED = "accepted"
    CHANGED = "changed"

    @property
    def order(self) -> int:
        """The place among differences that are shown together: 0 for a loss."""
        return list(Kind).index(self)


class ResolveAnswer(StrEnum):
    """The verdict of a comparison, in its order of weight."""

    LOST = "lost"
    UNVERIFIED = "unverified"
    CHANGED = "changed"
    SAME = "same"


def decide(*, is_lost: bool, is_unverified: bool, is_changed: bool) -> ResolveAnswer:
    """The verdict of a comparison that needs no statistics: what weighs most of what was found."""
    if is_lost:
        return ResolveAnswer.LOST
    if is_unverified:
        return ResolveAnswer.UNVERIFIED
    return ResolveAnswer.CHANGED if is_changed else ResolveAnswer.SAME


EXIT_CODES = {ResolveAnswer.LOST: 1, ResolveAnswer.UNVERIFIED: 3, ResolveAnswer.CHANGED: 0, ResolveAnswer.SAME: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTable:
    """A file of tuned tiles that expert layers ask for.

    `triton` is the version that it was tuned for, `is_own` whether the arm runs that one; both are empty where no such file is
    found.
    """

    name: str
    triton: str = ""
    is_own: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReading:
    """What one arm resolves to for one model on one GPU.

    `choices` go by the keys of `rules.RULES`, those of tables are TunedTables; `flags` go by the engine's names of its
    arguments; `unverified` says of each part that could not be read why.
    """

    choices: Mapping[str, Any]
    flags: Mapping[str, Any]
    unverified: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What one arm resolves to. `version` is SGLang's, `torch` what it pins, `triton` what tables are looked up for."""

    name: str
    version: str
    torch: str
    triton: str
    readings: Mapping[Case, ArmReading]
    stand_ins: tuple[str, ...] = ()


def list_answered(base: Resolution, candidate: Resolution) -> tuple[Case, ...]:
    """The cases that either arm answered, in their order."""
    return tuple(dict.fromkeys((*base.readings, *candidate.readings)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line: a key, its value in both arms, the models and GPUs that it concerns. `reason` is why a loss is accepted."""

    key: str
    kind: Kind
    base: str
    candidate: str
    cases: tuple[Case, ...]
    reason: str | None = None


class _HasKind(Protocol):
    @property
    def kind(self) -> Kind: ...


ArmFacts = TypeVar("ArmFacts")
FoundDifference = TypeVar("FoundDifference", bound=_HasKind)
Gap = TypeVar("Gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class FactComparison(Generic[ArmFacts, FoundDifference, Gap]):
    """Two arms side by side, without statistics: differences, losses first; what could not be compared."""

    base: ArmFacts
    candidate: ArmFacts
    differences: tuple[FoundDifference, ...]
    unverified: tuple[Gap, ...]

    @property
    def answer(self) -> ResolveAnswer:
        """The verdict."""
        kinds = {one.kind for one in self.differences}
        return decide(is_lost=Kind.LOST in kinds, is_unverified=bool(self.unverified), is_changed=bool(kinds))

    def sum_up(self, sentences: Mapping[ResolveAnswer, str]) -> str:
        """The last line for people: the answer, how many differences there are of each kind, and what the answer means."""
        counts = [f"{sum(one.kind is kind for one in self.differences)} {kind.value}" for kind in Kind]
        return f"{self.answer.value}: {', '.join(counts)}; {sentences[self.answer]}"


class UnreadKind(Enum):
    """Why a part of what an arm resolves to cannot be compared."""

    NO_ANSWER = auto()
    """The arm gives no answer at all."""
    UNREADABLE = auto()
    """Something went wrong while the part was read, which `why` tells in the words of the arm's environment."""
    UNTOLD = auto()
    """Only the other arm reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What one arm could not read or did not report: a part of it, or all where `part` is empty, and where."""

    arm: Arm
    kind: UnreadKind
    cases: tuple[Case, ...]
    part: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison(FactComparison[Resolution, Difference, Unread]):
    """What two arms resolve to for the `cases` that both answered."""

    cases: tuple[Case, ...]
