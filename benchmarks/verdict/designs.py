"""How many windows and blocks a loss needs that only one metric shows: power of the present rule at +3 %.

Usage: python -m benchmarks.verdict.designs [--trials 300] [--seed 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdict.gate import Design, decide_all, draw_batch
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import DEFAULT, Noise, slow_down
from perfgate.core import Outcome

EFFECT = 0.03
METRICS = {"output_tok_per_s": "throughput alone", "median_itl_ms": "median ITL alone"}
NOISES: Mapping[str, Noise] = {"stalls in 12.5 % of windows": DEFAULT, "no stalls": replace(DEFAULT, stall_rate=0.0)}


def study(trials: int, seed: int) -> list[dict[str, Any]]:
    """One row per metric, noise and number of windows; power after 3 and after 6 blocks of the same evidence."""
    rows = []
    for metric, kind in METRICS.items():
        for label, noise in NOISES.items():
            for windows in (3, 5, 7, 9):
                rng = np.random.default_rng([seed, windows])
                effect = slow_down(DEFAULT.metrics, EFFECT, (metric,))
                batch = draw_batch(rng, Design(noise=noise, windows=windows), trials, effect)
                found = {
                    str(blocks): as_rate(
                        sum(one.outcome is Outcome.REGRESSION for one in decide_all(batch, blocks=blocks)), trials
                    )
                    for blocks in (3, 6)
                }
                rows.append({"kind": kind, "noise": label, "windows": windows, "power": found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = study(given.trials, given.seed)
    path = write_results("designs", began, {"effect": EFFECT, "seed": given.seed, "trials": given.trials, "rows": rows})
    print_table(
        ["slow-down", "noise", "windows per start", "3 blocks", "6 blocks"],
        [
            [row["kind"], row["noise"], str(row["windows"]), *(f"{one['rate']:.1%}" for one in row["power"].values())]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
