"""Whether another estimator of a decode step is steadier than median ITL, judged by sessions that did not choose it.

Usage: python -m benchmarks.noise.estimators

The lower quartile over segments of a second of the median 8-step time was suggested by sessions of plain dummy weights: it cut
the variance of a block by 2.8. Here it stands against median ITL in the sessions of a model that routes, on H200s. What is
held against it was fixed before the sessions came that are not in SEEN:

It wins in a load if, over at least MIN_BLOCKS blocks of equal arms of sessions that are not in SEEN, its mean square is at most
MAX_RATIO of that of median ITL, and if in each injected session of the load it shows MIN_ANSWER to 1 / MIN_ANSWER of what
median ITL shows.

Prediction, made with the sessions in SEEN alone: it does not win. In closed-c16 its mean square is 0.5 to 1 of median ITL's; in
mixed-c16 an 8-step time holds a prefill more often than not, so that it scatters by more than 5 % and does not answer gpu:15.
The same over single gaps answers there, with 0.3 to 1.3 of the mean square.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.error_rates.recordings import read_list
from benchmarks.noise.segments import Floats, measure_segments
from benchmarks.noise.slots import LIST
from benchmarks.verdict.record import print_table, write_results
from perfgate.core import Window
from perfgate.readers.bench_serving import read_fields
from perfgate.results.results import load_results
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks
from perfgate.verdict.validity.admission import admit

FOLDER = "benchmarks/h200/serving/routed"
LOADS = ("gpt-oss-20b-shape-mxfp4-closed-c16", "gpt-oss-20b-shape-mxfp4-mixed-c16")
"""The loads that the prediction names. Times of day are known of closed loops alone (`segments`)."""
SEEN = ("mxfp4-closed-c16-aa-1", "mxfp4-closed-c16-aa-2-m2")
MIN_BLOCKS, MAX_RATIO, MIN_ANSWER = 6, 0.5, 0.8
TODAY = "median ITL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One window: what the gate reads of it, and the median time of a step in each of its seconds, of 8 steps and of one."""

    median_itl_ms: float
    eight_ms: Floats
    single_ms: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The blocks of one session: by estimator, candidate minus base on the log scale."""

    name: str
    load: str
    is_equal: bool
    is_seen: bool
    differences: Mapping[str, tuple[float, ...]]


def _quartile(values: Floats) -> float:
    return float(np.log(np.percentile(values, 25)))


ESTIMATORS: Mapping[str, Callable[[Sequence[Measured]], float]] = {
    TODAY: lambda windows: median(log(one.median_itl_ms) for one in windows),
    "lower quartile of 8-step times, median window": lambda windows: median(_quartile(one.eight_ms) for one in windows),
    "lower quartile of 8-step times, whole start": lambda windows: _quartile(np.concatenate([one.eight_ms for one in windows])),
    "lower quartile of gaps, median window": lambda windows: median(_quartile(one.single_ms) for one in windows),
}
"""What a start's windows say of a decode step, on the log scale."""


def measure_window(window: Window) -> Measured:
    """Read one window again, for what its verdict leaves aside."""
    fields = read_fields(Path(window.run.source))
    return Measured(
        median_itl_ms=window.run.values["median_itl_ms"],
        eight_ms=measure_segments(fields, 8),
        single_ms=measure_segments(fields, 1),
    )


def find_differences(folder: Path) -> Found | None:
    """All estimators in all blocks of a session; None for another load, and for one that is void or without a whole block."""
    scenario, session = load_results(folder)
    if scenario.name not in LOADS:
        return None
    policy = fix_policy(session, scenario, None)
    blocks = read_blocks(session, policy)
    if not blocks or admit(session, policy.limits):
        return None
    arms = [([measure_window(one) for one in block.base], [measure_window(one) for one in block.candidate]) for block in blocks]
    return Found(
        name=folder.name,
        load=scenario.name,
        is_equal=session.is_aa,
        is_seen=folder.name in SEEN,
        differences={
            name: tuple(estimate(candidate) - estimate(base) for base, candidate in arms)
            for name, estimate in ESTIMATORS.items()
        },
    )


def mean_square(sessions: Sequence[Found], estimator: str) -> float:
    """Of all blocks' differences, around the zero that they should be."""
    return fmean(value * value for one in sessions for value in one.differences[estimator])


def judge(sessions: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """A row for each load and estimator, over the sessions that were not seen before."""
    fresh = [one for one in sessions if not one.is_seen]
    for load in sorted({one.load for one in fresh}):
        equal = [one for one in fresh if one.load == load and one.is_equal]
        slowed = [one for one in fresh if one.load == load and not one.is_equal]
        blocks = sum(len(one.differences[TODAY]) for one in equal)
        for name in ESTIMATORS:
            ratio = mean_square(equal, name) / mean_square(equal, TODAY) if blocks else None
            answers = [fmean(one.differences[name]) / fmean(one.differences[TODAY]) for one in slowed]
            yield {
                "load": load,
                "estimator": name,
                "blocks": blocks,
                "scatter": mean_square(equal, name) ** 0.5 if blocks else None,
                "ratio": ratio,
                "answers": answers,
                "wins": name != TODAY
                and blocks >= MIN_BLOCKS
                and ratio is not None
                and ratio <= MAX_RATIO
                and all(MIN_ANSWER <= one <= 1 / MIN_ANSWER for one in answers),
            }


def list_sessions() -> list[Found]:
    """Each session on an H200 of the list of error rates that serves one of LOADS and can be judged, in that list's order."""
    entries = [one for one in read_list(LIST) if one.folder.resolve().parent.as_posix().endswith(FOLDER)]
    found = (find_differences(one.folder) for one in entries if one.kind in {"aa", "injected"})
    return [one for one in found if one is not None]


def describe(one: Found) -> dict[str, Any]:
    """A session as plain values."""
    rounded = {name: [round(value, 6) for value in values] for name, values in one.differences.items()}
    facts = {"session": one.name, "load": one.load, "is_equal": one.is_equal, "is_seen": one.is_seen}
    return {**facts, "differences": rounded}


def main() -> None:
    """Judge, print and write."""
    began = time.perf_counter()
    sessions = list_sessions()
    rows = list(judge(sessions))
    path = write_results("estimators", began, {"sessions": [describe(one) for one in sessions], "judged": rows})
    print_table(
        ["session", "arms", "seen before", *ESTIMATORS],
        [
            [
                one.name,
                "equal" if one.is_equal else "unlike",
                "yes" if one.is_seen else "no",
                *(" ".join(f"{100 * expm1(value):+.2f}" for value in values) for values in one.differences.values()),
            ]
            for one in sessions
        ],
    )
    for row in rows:
        print(row)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
