"""What a seeded fault is: something that goes wrong on purpose, and the answer that the gate must give to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """What is wrong; each kind has its own bar."""

    SLOW = "slow"
    WRONG = "wrong but fast"
    BROKEN = "broken evidence"
    SICK = "sick machine"
    SAME = "no change"


class Where(StrEnum):
    """What the gate runs on."""

    RECORDED = "recorded H200 windows"
    FAKE = "fake engine"
    ENGINE = "real engine on the CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a run of the gate said.

    `got` is the verdict's outcome, or `exit N` where there is none; `told` holds everything that it gave as a reason, a line
    each; `lost` names what a run left behind or lost: it must be empty.
    """

    got: str
    told: tuple[str, ...]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row: `run` seeds the fault below an empty folder and runs the gate; `expected` are the answers that catch it.

    `words` must stand in what the gate told, so that a fault is not caught for another one's reason. A row that `is_long`
    runs where `-m` of pytest names `long`. `missed` is why a fault is not caught, where that is known and shown as a miss.
    """

    name: str
    kind: Kind
    made: str
    where: Where
    expected: tuple[str, ...]
    words: str
    run: Callable[[Path], Answer] = field(repr=False)
    is_long: bool = False
    missed: str = ""

    @property
    def slug(self) -> str:
        """The row's name as pytest shows it."""
        return self.name.replace(" ", "-")

    def is_caught_by(self, answer: Answer) -> bool:
        """Whether the gate said what it must, for the right reason, and left nothing behind."""
        return answer.got in self.expected and find_line(answer, self.words) is not None and not answer.lost


def find_line(answer: Answer, words: str) -> str | None:
    """The first line of what the gate told that holds `words`; any line at all for no words."""
    return next((line for line in answer.told or ("",) if words in line), None)
