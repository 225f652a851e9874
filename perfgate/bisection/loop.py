"""The search as a loop: read the journal, measure the most informative commit next, append the result, repeat."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.bisection.record import Record, dump_metrics
from perfgate.bisection.repository import Line
from perfgate.bisection.search import GOOD, Answer, Search, SearchRules, Step, plan_next
from perfgate.bisection.trial import CommitBench, CommitError, PlaceStore, Trial, TrialResult, VoidError
from perfgate.serving.progress import Progress
from perfgate.storage.rounding import format_count

MEASUREMENTS = "measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLoop:
    """Everything that a search works with."""

    line: Line
    rules: SearchRules
    record: Record
    checkouts: PlaceStore
    bench: CommitBench
    progress: Progress
    read_clock: Callable[[], float] = time.monotonic

    def run(self) -> tuple[Search, Answer]:
        """Measure until the search ends."""
        while True:
            search = self.replay()
            step = plan_next(search)
            if isinstance(step, Answer):
                return search, step
            self._take(step, search)

    def replay(self) -> Search:
        """The state of the search by its journal; a build whose files were removed does not count."""
        search = self.record.replay(len(self.line.commits), self.rules)
        there = frozenset(place for place in search.built if self.checkouts.has(self.line.find(place).sha))
        return replace(search, built=there)

    def _take(self, step: Step, search: Search) -> None:
        """Build both commits, then measure; a failure goes into the journal, and the search continues without it."""
        for place in dict.fromkeys((GOOD, step.place)):
            if place not in search.built and not self._make(place):
                return
        commit = self.line.find(step.place)
        number = self.record.measurements
        folder = Path(MEASUREMENTS) / f"{number:04d}-{commit.short}"
        expected = f", {step.bits:.2f} bits expected" if step.bits is not None else ""
        self.progress.step(
            f"{format_count(step.blocks, 'block')} of {commit.short} ({step.place} of {search.places}) against GOOD{expected}; "
            f"{search.minutes:.1f} of {self.rules.budget:g} GPU-minutes used"
        )
        trial = Trial(good=self.line.good, commit=commit, blocks=step.blocks, number=number, folder=self.record.folder / folder)
        begun = self.read_clock()
        try:
            result = self._measure(trial)
        except (CommitError, VoidError) as error:
            event = "void" if isinstance(error, VoidError) else "skipped"
            self._give_up(event, step.place, begun, str(error))
            return
        minutes = self._count_minutes(begun)
        # A session knows its own time, that of a part before a break too; what is left went to calibration and set-up.
        self.record.add(
            "measured",
            step.place,
            commit.sha,
            result.minutes or minutes,
            folder=str(folder),
            metrics=dump_metrics(result.metrics),
        )
        if result.minutes and minutes > result.minutes:
            self.record.add("prepared", step.place, commit.sha, minutes - result.minutes)

    def _measure(self, trial: Trial) -> TrialResult:
        result = self.bench.measure(trial)
        if self.rules.metric and self.rules.metric not in result.metrics:
            raise VoidError(f"{trial.folder}: no {self.rules.metric} was measured")
        return result

    def _make(self, place: int) -> bool:
        commit, begun = self.line.find(place), self.read_clock()
        self.progress.step(f"making {commit.short} ready")
        try:
            self.checkouts.make(commit.sha)
        except CommitError as error:
            self._give_up("skipped", place, begun, str(error))
            return False
        self.record.add("built", place, commit.sha, self._count_minutes(begun))
        return True

    def _count_minutes(self, begun: float) -> float:
        """What was spent since `begun`, of each GPU that a server of the search takes."""
        return (self.read_clock() - begun) / 60 * self.rules.gpus

    def _give_up(self, event: str, place: int, begun: float, reason: str) -> None:
        commit = self.line.find(place)
        self.progress.step(f"  {commit.short}: {reason}")
        self.record.add(event, place, commit.sha, self._count_minutes(begun), reason=reason)
