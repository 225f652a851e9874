"""The starts of a result folder as runs, one a start, so that two folders can be held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, fsum, log
from pathlib import Path

from perfgate.core import Arm, Remark, RemarkKind, Run
from perfgate.errors import EvidenceError
from perfgate.results.results import load_results
from perfgate.results.words import describe_driver_problem
from perfgate.verdict.validity.pairing import fix_rules, group_starts


def read_starts_as_runs(folder: Path) -> tuple[Run, ...]:
    """Each start of the candidate in `folder`, as one run with the geometric mean of its measured windows.

    The windows of a start share its offset, so that the start is what counts once. Problems of the session are problems of
    each run. Raise EvidenceError for a folder that is broken.
    """
    scenario, session = load_results(folder)
    rules = fix_rules(scenario, {})
    starts = [(start.number, start.pick_judged(rules)) for start in group_starts(session) if start.arm is Arm.CANDIDATE]
    runs = [_average([window.run for window in windows], f"{folder}:start {number}") for number, windows in starts if windows]
    if not runs:
        raise EvidenceError(f"{folder}: holds no measured window of the candidate; `perfgate explain {folder}` says why")
    void = [Remark(kind=RemarkKind.OF_SESSION, detail=describe_driver_problem(problem)) for problem in session.problems]
    return tuple(replace(run, problems=(*void, *run.problems)) for run in runs)


def _average(runs: Sequence[Run], source: str) -> Run:
    carried = set.intersection(*(set(run.values) for run in runs))
    values = {name: exp(fsum(log(run.values[name]) for run in runs) / len(runs)) for name in runs[0].values if name in carried}
    problems = tuple(problem for run in runs for problem in run.problems)
    return replace(runs[0], source=source, values=values, duration_s=None, problems=problems)
