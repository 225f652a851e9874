"""Measure commits of any repository by a command that prints a number, or a result of bench_serving."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from statistics import median

from perfgate.bisection.guard import read_last
from perfgate.bisection.repository import Commit
from perfgate.bisection.search import CommitReading
from perfgate.bisection.trial import CommitError, PlaceStore, Trial, TrialResult, VoidError
from perfgate.core import Arm
from perfgate.errors import EvidenceError, InputError
from perfgate.metrics import METRICS
from perfgate.readers.bench_serving import read_window
from perfgate.results.words import describe_remark
from perfgate.verdict.validity.pairing import DECIMALS

SKIP = 125
"""The exit code by which a command says that this commit cannot be measured: that of `git bisect run`."""

VALUE = "value"
"""What the metric of a command is called that prints a bare number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBench:
    """Runs `command` in the checkouts of both commits, in turns.

    A block is `windows` runs of each; the median of their logarithms counts. With `metric` the command prints bench_serving's
    JSON, else a number that improves upwards if `higher`. `margin_log` is the smallest loss to act on, as a log ratio.
    """

    checkouts: PlaceStore
    command: str
    metric: str
    margin_log: float
    higher: bool
    windows: int
    timeout_s: float

    def measure(self, trial: Trial) -> TrialResult:
        """Run all blocks. Raise VoidError when a run fails, CommitError when it ends with SKIP."""
        trial.folder.mkdir(parents=True, exist_ok=True)
        differences = tuple(self._run_block(trial, block) for block in range(trial.blocks))
        reading = CommitReading(differences=differences, margin_log=self.margin_log, higher=self.higher)
        return TrialResult(metrics={self.metric or VALUE: reading})

    def _run_block(self, trial: Trial, block: int) -> float:
        """One block in ABBA order, its first arm alternating with the block."""
        arms = {Arm.BASE: trial.good, Arm.CANDIDATE: trial.commit}
        found: dict[Arm, list[float]] = {arm: [] for arm in arms}
        for window in range(self.windows):
            order = list(arms) if (trial.number + block + window) % 2 else list(arms)[::-1]
            for arm in order:
                output = trial.folder / f"block-{block}-{arm.value}-{window}.jsonl"
                found[arm].append(self._run(arms[arm], output))
        return round(median(found[Arm.CANDIDATE]) - median(found[Arm.BASE]), DECIMALS)

    def _run(self, commit: Commit, output: Path) -> float:
        """Run the command once and return its log badness."""
        checkout = self.checkouts.find_checkout(commit.sha)
        try:
            code = self.checkouts.guard.run(self.checkouts.fill(self.command, commit.sha), checkout, output, self.timeout_s)
        except OSError as error:
            raise InputError(f"--command {self.command}: cannot be run ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            raise VoidError(f"{commit.short}: the command did not end within {self.timeout_s:g} s") from None
        if code == SKIP:
            raise CommitError(f"the command says that it cannot be measured (exit code {SKIP})")
        if code:
            raise VoidError(f"{commit.short}: the command ended with exit code {code} in {checkout}: {read_last(output)}")
        return self._read(commit, output)

    def _read(self, commit: Commit, output: Path) -> float:
        if self.metric:
            return METRICS[self.metric].badness(_read_json(commit, output, self.metric))
        last = read_last(output)
        try:
            number = float(last)
        except ValueError:
            number = 0.0
        if not 0 < number < inf:
            raise VoidError(f"{commit.short}: the command printed {last[:80]!r} where a number above zero was expected")
        return -log(number) if self.higher else log(number)


def _read_json(commit: Commit, output: Path, metric: str) -> float:
    """The value of a metric in the last line. Raise VoidError when the run is no evidence."""
    output.write_text(read_last(output) + "\n", encoding="utf-8")
    try:
        run = read_window(output)
    except EvidenceError as error:
        raise VoidError(f"{commit.short}: no result of bench_serving: {error}") from None
    problems = [*map(describe_remark, run.problems), *([] if run.values.get(metric, 0.0) > 0 else [f"{metric} is missing"])]
    if problems:
        raise VoidError(f"{commit.short}: {problems[0]}")
    return run.values[metric]
