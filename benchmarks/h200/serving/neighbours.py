"""How ITL answers others who use the machine's cores, from recorded sessions with telemetry.

    python benchmarks/h200/serving/neighbours.py RESULT_DIR...

Each window is compared with the median of its session's windows of the same arm. Its tail counts as slow when its P99 ITL is
above 1.5 times that; the last column is the median ITL, as a ratio of its usual value.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from perfgate.results.results import load_results

SLOW = 1.5
BOUNDS = (0.0, 0.06, 0.08, 0.10, 1.0)
TAIL, MIDDLE = "p99_itl_ms", "median_itl_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One window: the share of CPU time that went to others, and its ITL as ratios of what is usual."""

    foreign: float
    tail: float
    middle: float


def list_windows(folder: Path) -> list[Seen]:
    _, session = load_results(folder)
    windows = [one for one in session.windows if "foreign_cpu_share" in one.telemetry]
    usual = {
        (arm, name): median(one.run.values[name] for one in windows if one.arm is arm)
        for arm in {one.arm for one in windows}
        for name in (TAIL, MIDDLE)
    }
    return [
        Seen(
            foreign=one.telemetry["foreign_cpu_share"],
            tail=one.run.values[TAIL] / usual[one.arm, TAIL],
            middle=one.run.values[MIDDLE] / usual[one.arm, MIDDLE],
        )
        for one in windows
    ]


def main(folders: list[Path]) -> None:
    found = [window for folder in folders for window in list_windows(folder)]
    print("| `foreign_cpu_share` | windows | slow P99 ITL | median ITL |\n|:--|:--|:--|:--|")
    for low, high in pairwise(BOUNDS):
        here = [one for one in found if low <= one.foreign < high]
        slow = sum(one.tail > SLOW for one in here)
        middle = f"{median(one.middle for one in here):.3f}" if here else "n/a"
        print(f"| {low:.2f} to {high:.2f} | {len(here)} | {slow} | {middle} |")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
