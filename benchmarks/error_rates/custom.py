"""The rules that people use today on the windows of the same replays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from benchmarks.error_rates.replays import Case, Pick
from benchmarks.verdict.record import as_rate
from benchmarks.verdict.rivals import RIVALS, Evidence, Floats, Rival
from perfgate.core import Arm, Better, Role
from perfgate.metrics import METRICS

MIN_HISTORY = 10
"""With fewer earlier windows a rule on history is not asked: its users keep at least ten."""


def read_values(case: Case, metrics: Sequence[str]) -> Floats:
    """Measured windows of a case as they came, re-runs left out: (blocks, 2 arms, windows, metrics)."""
    return np.array(
        [
            [
                [
                    [window.run.values[name] for name in metrics]
                    for window in block.windows
                    if window.arm is arm and window.role is Role.MEASURED
                ]
                for arm in (Arm.BASE, Arm.CANDIDATE)
            ]
            for block in case.blocks
        ]
    )


def judge_all(case: Case, quiet: Case, picks: Sequence[Pick], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """How often each rule alarms over `picks`: on all their windows, and on the first window of each arm of each block.

    Rules on history see the A/A windows of `quiet` that are not in the replay, oldest first, each window a run: those of the
    replay's own rig, where there are some, as stored noise is.
    """
    values = read_values(case, metrics)
    past = read_values(quiet, metrics)
    higher = np.array([METRICS[name].better is Better.HIGHER for name in metrics])
    singles: list[Pick] = [((index, swapped),) for index in range(len(values)) for swapped in _swaps(case)]
    rows = []
    for label, chosen, windows in (("all windows", picks, None), ("one run an arm", singles, 1)):
        evidence = []
        for pick in chosen:
            base, candidate = gather_arms(values, pick, windows)
            judged = {index for index, _ in pick} if case is quiet else set()
            history = gather_history(past, judged | list_foreign(quiet, case.rigs[pick[0][0]]))
            evidence.append(Evidence(base=base, candidate=candidate, history=history, higher=higher))
        rows += [_count(rival, label, evidence) for rival in RIVALS]
    return rows


def _swaps(case: Case) -> tuple[bool, ...]:
    return (False, True) if case.is_symmetric else (False,)


def gather_arms(values: Floats, pick: Pick, windows: int | None = None) -> tuple[Floats, Floats]:
    """The runs of both arms of one replay, the first `windows` of each block's start or all; (1, runs, metrics) each."""
    base = [values[index, int(swapped), :windows] for index, swapped in pick]
    candidate = [values[index, 1 - int(swapped), :windows] for index, swapped in pick]
    return np.concatenate(base)[None], np.concatenate(candidate)[None]


def list_foreign(quiet: Case, rig: object) -> set[int]:
    """The A/A blocks that are no history for `rig`: those of other rigs, as long as it has some of its own."""
    if rig not in quiet.rigs:
        return set()
    return {index for index, own in enumerate(quiet.rigs) if own != rig}


def gather_history(past: Floats, judged: Collection[int]) -> Floats:
    """The runs of all blocks but those of the replay, in the order of time; (1, runs, metrics)."""
    left = [index for index in range(len(past)) if index not in judged]
    return past[left].reshape(1, -1, past.shape[-1])


def _count(rival: Rival, label: str, evidence: Sequence[Evidence]) -> dict[str, Any]:
    usable = [
        one
        for one in evidence
        if one.base.shape[1] >= rival.runs and (not rival.history or one.history.shape[1] >= min(rival.history, MIN_HISTORY))
    ]
    alarms = sum(bool(rival.alarms(one)[0]) for one in usable)
    return {
        "rule": rival.name,
        "evidence": label,
        "history": max((min(one.history.shape[1], rival.history) for one in usable), default=0),
        "alarms": as_rate(alarms, len(usable)) if usable else None,
    }
