"""Whether decode steps have two modes, a fast one and one about 4.6 % slower, in stored sessions of equal lengths.

Usage: python -m benchmarks.verdict.modes

Under a closed loop of equal lengths requests run in waves, all at the same step. The time of eight steps is the median over the
requests of a wave; that growing contexts make it longer is taken out, a straight line for each start. A second mode at +4.6 %
shows as 8-step times between BAND_LOW and BAND_HIGH above the most frequent one that no equal share below it matches, or below
where the slow mode is the most frequent: the *excess*. Where there is one mode, both shares are alike but for its tails.

A session shows two modes if the excess is EXCESS or more in a quarter of its starts or more. Prediction, made when two sessions
of a model that routes were there, which do not: no later one does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.error_rates.recordings import Recording
from benchmarks.verdict.record import print_table, write_results
from benchmarks.verdict.segments import Floats
from benchmarks.verdict.slots import list_recordings
from perfgate.core import Arm
from perfgate.readers.bench_serving import read_fields
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks

STEPS = 8
BAND_LOW, BAND_HIGH = 0.03, 0.07
EXCESS, LEAST_STARTS = 0.2, 0.25
WIDTH = 0.01
"""Of a bin of the histogram whose fullest one is the mode."""


def list_waves(fields: Mapping[str, Any]) -> Iterator[Floats]:
    """The time of STEPS steps in the order of time, in seconds, for each wave of requests."""
    gaps, size = fields["itls"], fields["max_concurrency"]
    for first in range(0, len(gaps), size):
        wave = gaps[first : first + size]
        whole = min(map(len, wave)) // STEPS
        sums = np.array([one[: whole * STEPS] for one in wave]).reshape(len(wave), whole, STEPS).sum(axis=2)
        yield np.median(sums, axis=0)


def find_shares(waves: Sequence[Floats]) -> tuple[float, float]:
    """The shares of a start's 8-step times that lie in the band above their mode, and in the same band below it."""
    length = min(map(len, waves))
    table = np.array([wave[:length] for wave in waves])
    places = np.arange(length)
    line = np.polyval(np.polyfit(places, np.median(table, axis=0), 1), places)
    ratios = np.log(table / line).ravel()
    counts, edges = np.histogram(ratios, bins=np.arange(-0.2, 0.2 + WIDTH, WIDTH))
    away = ratios - (edges[int(counts.argmax())] + WIDTH / 2)
    above, below = ((side >= BAND_LOW) & (side < BAND_HIGH) for side in (away, -away))
    return float(above.mean()), float(below.mean())


def measure_session(one: Recording) -> dict[str, Any]:
    """A row: the shares of each start, by arm."""
    shares: dict[Arm, list[tuple[float, float]]] = {arm: [] for arm in Arm}
    for block in read_blocks(one.session, fix_policy(one.session, one.scenario, None)):
        for arm, windows in ((Arm.BASE, block.base), (Arm.CANDIDATE, block.candidate)):
            waves = [wave for window in windows for wave in list_waves(read_fields(Path(window.run.source)))]
            shares[arm].append(find_shares(waves))
    row: dict[str, Any] = {"session": one.name, "cores": one.cores}
    for arm, found in shares.items():
        row[arm.value] = [{"above": round(above, 4), "below": round(below, 4)} for above, below in found]
    every = [pair for found in shares.values() for pair in found]
    row["bimodal_starts"] = sum(abs(above - below) >= EXCESS for above, below in every)
    row["has_two_modes"] = row["bimodal_starts"] >= LEAST_STARTS * len(every)
    row["above"], row["below"] = (round(float(np.mean([pair[side] for pair in every])), 4) for side in (0, 1))
    return row


def has_waves(one: Recording) -> bool:
    """Whether its requests are as long as one another, several waves of them at a time."""
    load = one.scenario.load
    is_equal = load.range_ratio is None or load.range_ratio >= 1
    return is_equal and load.is_closed_loop and load.num_prompts % (load.max_concurrency or load.num_prompts) == 0


def main() -> None:
    """Count, print and write."""
    began = time.perf_counter()
    rows = [measure_session(one) for one in list_recordings() if has_waves(one)]
    path = write_results("modes", began, {"band": [BAND_LOW, BAND_HIGH], "sessions": rows})
    print_table(
        ["session", "cores", "two modes", "above", "below", "excess by start: base", "candidate"],
        [
            [
                row["session"],
                row["cores"],
                "yes" if row["has_two_modes"] else "no",
                f"{row['above']:.1%}",
                f"{row['below']:.1%}",
                *(" ".join(f"{100 * (one['above'] - one['below']):+.0f}" for one in row[arm.value]) for arm in Arm),
            ]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
