"""What may be said of one hardware on a pull request: the heading of its section, and how a commit status says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfgate.core import Outcome, combine_outcomes
from perfgate.report.words.headline import write_heading


class State(StrEnum):
    """From the moment a measurement is planned until there is a verdict, or a reason why there is none."""

    AWAITING = "awaiting"
    PLANNED = "planned"
    RUNNING = "running"
    PASS = "pass"  # noqa: S105 - an outcome, not a password
    IMPROVED = "improvement"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    SICK = "sick-runner"
    REPORTED = "regression-reported"
    ACCEPTED = "accepted"

    @property
    def is_final(self) -> bool:
        """Whether this says something of the commit that later states of the same run will not replace."""
        return self not in (State.AWAITING, State.PLANNED, State.RUNNING)

    @property
    def commit_status(self) -> str:
        """GitHub's word: only a verdict that lets the change merge is a success."""
        return _STATUSES.get(self, "error" if self.is_final else "pending")

    @property
    def order(self) -> tuple[int, int]:
        """The place among sections: the smallest needs a reader first."""
        return _STATES[self].order

    @property
    def icon(self) -> str:
        """One character for a heading."""
        return _STATES[self].icon

    @property
    def sentence(self) -> str:
        """What it means for the reader, as a clause without a full stop."""
        return _STATES[self].sentence

    @property
    def words(self) -> str:
        """The state and what it means, as the words of a heading."""
        return f"{self.value}: {self.sentence}"


_STATUSES = {
    State.PASS: "success",
    State.IMPROVED: "success",
    State.REGRESSION: "failure",
    State.REPORTED: "success",
    State.ACCEPTED: "success",
}
_OF_OUTCOME = {
    Outcome.IMPROVED: State.IMPROVED,
    Outcome.PASS: State.PASS,
    Outcome.REGRESSION: State.REGRESSION,
    Outcome.INCONCLUSIVE: State.INCONCLUSIVE,
    Outcome.INVALID: State.INVALID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateRow:
    """`order` is that of the outcome that the state stands at, then its place behind it."""

    order: tuple[int, int]
    icon: str
    sentence: str


_STATES = {
    state: _StateRow(order=(outcome.order, 0), icon=outcome.icon, sentence=outcome.sentence)
    for outcome, state in _OF_OUTCOME.items()
} | {
    State.SICK: _StateRow(
        order=(Outcome.INVALID.order, 1),
        icon=Outcome.INVALID.icon,
        sentence="the machine is not fit to measure; nothing is said about the change",
    ),
    State.REPORTED: _StateRow(
        order=(Outcome.REGRESSION.order, 1),
        icon=Outcome.REGRESSION.icon,
        sentence="slower on an uncalibrated machine, which this repository has only reported",
    ),
    State.ACCEPTED: _StateRow(
        order=(Outcome.REGRESSION.order, 2),
        icon=Outcome.REGRESSION.icon,
        sentence="slower, and accepted by a maintainer for this commit",
    ),
    State.AWAITING: _StateRow(
        order=(Outcome.INCONCLUSIVE.order, 1),
        icon="\N{RAISED HAND}",
        sentence="waits for a maintainer: this code comes from a fork, so a person reads it before it runs on a GPU",
    ),
    State.RUNNING: _StateRow(order=(Outcome.INCONCLUSIVE.order, 2), icon="\N{HOURGLASS WITH FLOWING SAND}", sentence="running"),
    State.PLANNED: _StateRow(
        order=(Outcome.INCONCLUSIVE.order, 3), icon="\N{ALARM CLOCK}", sentence="planned: waits for a free machine"
    ),
}


DEPTH = 2
"""Of the heading of a section; one of a report inside it is deeper."""


def find_state(outcomes: Sequence[Outcome], missing: State | None = None, *, is_only_reported: bool = False) -> State:
    """The state of a hardware whose scenarios ended in `outcomes`; without any the measurement is invalid.

    `missing` is the state of what was not measured; it outweighs what was, except a regression. `is_only_reported` says that no
    regression is to fail the change. Where something is missing too, what it would have shown is not known.
    """
    state = _OF_OUTCOME[combine_outcomes(outcomes)] if outcomes else State.INVALID
    if state is State.REGRESSION and not is_only_reported:
        return state
    return missing or (State.REPORTED if state is State.REGRESSION else state)


def has_verdicts_words(state: State, *, is_whole: bool) -> bool:
    """Whether the heading has the verdict's words: an incomplete result has them for a loss only, an accepted loss never."""
    return state is State.REGRESSION or (is_whole and state is not State.ACCEPTED)


def write_short_heading(state: State, hardware: str) -> str:
    """The first line of a machine's section whose words stand in its fold."""
    return write_heading(state.icon, f"{state.value} ({hardware})", DEPTH)


def write_section_heading(state: State, hardware: str, headline: str = "") -> str:
    """The first line of a machine's section: the words of `headline`, markdown, or those of the state where it is empty."""
    words = " ".join(headline.splitlines()) or state.words
    return write_heading(state.icon, f"{words} ({hardware})", DEPTH)
