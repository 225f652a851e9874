"""One measurement of a commit against GOOD: its result, and the errors where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perfgate.bisection.guard import Guard
from perfgate.bisection.repository import Commit
from perfgate.bisection.search import CommitReading
from perfgate.errors import PerfgateError


class CommitError(PerfgateError):
    """A commit that cannot be built or measured at all, so that the search goes around it."""

    exit_code = 3


class VoidError(PerfgateError):
    """A measurement without a usable result: a run that failed, a disturbed machine. It may be repeated."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to measure: blocks of `commit` against `good`, into a folder. `number` counts the measurements of a search."""

    good: Commit
    commit: Commit
    blocks: int
    number: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What was measured, by metric, and the minutes that it reports; 0 where it reports none."""

    metrics: Mapping[str, CommitReading]
    minutes: float = 0.0


class CommitBench(Protocol):
    """Something that can measure a commit."""

    def measure(self, trial: Trial) -> TrialResult:
        """Measure. Raise VoidError when the result is unusable, CommitError when every result of this commit would be."""


class PlaceStore(Protocol):
    """Where the places of a line, by their hashes, are made ready to be measured."""

    @property
    def guard(self) -> Guard:
        """What runs commands in them."""

    def find_checkout(self, sha: str) -> Path:
        """The folder in which a command runs."""

    def find_python(self, sha: str) -> Path:
        """The Python that runs what is there."""

    def fill(self, command: str, sha: str) -> list[str]:
        """The words of a command, with what it stands for filled in."""

    def has(self, sha: str) -> bool:
        """Whether a place is ready."""

    def make(self, sha: str) -> None:
        """Make it ready. Raise CommitError where that cannot be."""
