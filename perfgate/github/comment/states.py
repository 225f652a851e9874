"""What may be said of one hardware on a pull request, and how a commit status says it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from perfgate.core import Outcome


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

    @property
    def is_final(self) -> bool:
        """Whether this says something of the commit that later states of the same run will not replace."""
        return self not in (State.AWAITING, State.PLANNED, State.RUNNING)

    @property
    def commit_status(self) -> str:
        """GitHub's word: only a verdict that lets the change merge is a success."""
        return _STATUSES.get(self, "error" if self.is_final else "pending")


_STATUSES = {State.PASS: "success", State.IMPROVED: "success", State.REGRESSION: "failure"}

SENTENCES = {
    State.AWAITING: "waits for a maintainer: this code comes from a fork, so somebody reads it before it runs on a GPU",
    State.PLANNED: "planned: waits for a free machine",
    State.RUNNING: "running",
    State.PASS: "not slower, as far as the margins go",
    State.IMPROVED: "faster, and nothing slower",
    State.REGRESSION: "slower",
    State.INCONCLUSIVE: "too little evidence to call it slower or not slower",
    State.INVALID: "the measurement cannot be trusted, so it says nothing about speed",
    State.SICK: "the machine is not fit to measure; nothing is said about the change",
}

ICONS = {
    State.AWAITING: "\N{RAISED HAND}",
    State.PLANNED: "\N{ALARM CLOCK}",
    State.RUNNING: "\N{HOURGLASS WITH FLOWING SAND}",
    State.PASS: "\N{WHITE HEAVY CHECK MARK}",
    State.IMPROVED: "\N{WHITE HEAVY CHECK MARK}",
    State.REGRESSION: "\N{CROSS MARK}",
    State.INCONCLUSIVE: "\N{BLACK QUESTION MARK ORNAMENT}",
    State.INVALID: "\N{NO ENTRY SIGN}",
    State.SICK: "\N{NO ENTRY SIGN}",
}

URGENCY = (
    State.REGRESSION,
    State.INVALID,
    State.SICK,
    State.INCONCLUSIVE,
    State.AWAITING,
    State.RUNNING,
    State.PLANNED,
    State.PASS,
    State.IMPROVED,
)
"""The state that most needs somebody's eyes first."""

_OF_OUTCOME = {
    Outcome.IMPROVED: State.IMPROVED,
    Outcome.PASS: State.PASS,
    Outcome.REGRESSION: State.REGRESSION,
    Outcome.INCONCLUSIVE: State.INCONCLUSIVE,
    Outcome.INVALID: State.INVALID,
}
# Several scenarios of one hardware: the state that most needs somebody's eyes speaks for all.
_WORST_FIRST = (Outcome.REGRESSION, Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.IMPROVED)


def combine(outcomes: Sequence[Outcome]) -> State:
    """The state of a hardware whose scenarios ended in `outcomes`; without any the measurement is invalid."""
    return next((_OF_OUTCOME[outcome] for outcome in _WORST_FIRST if outcome in outcomes), State.INVALID)
