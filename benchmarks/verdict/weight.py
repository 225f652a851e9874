"""How much stored noise may weigh: whole-verdict false alarms and power at each number of degrees of freedom.

Usage: python -m benchmarks.verdict.weight [--verdicts 5000] [--trials 1000] [--seed 6]
The least forgiving noise decides: a baseline that was stored when the machine was half as noisy as it is today.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdict.gate import Batch, Dials, decide_all, draw_batch
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import DEFAULT, slow_down
from benchmarks.verdict.tuning import EFFECT, FORMER, QUIET, SLOWED
from perfgate.core import Outcome

CHUNK = 1000
CHOICES: Mapping[str, Dials] = {"former rule (6, phi / 1)": FORMER} | {str(df): Dials(prior_df=df) for df in (6, 8, 9, 10, 12)}
KINDS = ("all but TTFT", "median ITL alone")


def study_false_alarms(verdicts: int, seed: int) -> dict[str, dict[str, Any]]:
    """A/A verdicts called REGRESSION, by choice and noise; every choice sees the same windows."""
    found: dict[str, dict[str, Any]] = {choice: {} for choice in CHOICES}
    for setting, design in QUIET.items():
        rng = np.random.default_rng([seed, 0])
        counts = dict.fromkeys(CHOICES, 0)
        for size in _chunks(verdicts):
            batch = draw_batch(rng, design, size)
            for choice, dials in CHOICES.items():
                counts[choice] += _count(batch, dials)
        for choice, count in counts.items():
            found[choice][setting] = as_rate(count, verdicts)
    return found


def study_power(trials: int, seed: int) -> dict[str, dict[str, Any]]:
    """Slow-downs found after 3 blocks of 3 windows, by choice and kind."""
    found: dict[str, dict[str, Any]] = {choice: {} for choice in CHOICES}
    for kind in KINDS:
        design, only = SLOWED[kind]
        batch = draw_batch(np.random.default_rng([seed, 1]), design, trials, slow_down(DEFAULT.metrics, EFFECT, only))
        for choice, dials in CHOICES.items():
            found[choice][kind] = as_rate(_count(batch, dials), trials)
    return found


def _chunks(total: int) -> Iterator[int]:
    for first in range(0, total, CHUNK):
        yield min(CHUNK, total - first)


def _count(batch: Batch, dials: Dials) -> int:
    return sum(decision.outcome is Outcome.REGRESSION for decision in decide_all(replace(batch, dials=dials)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=5000, help="A/A verdicts for each noise")
    parser.add_argument("--trials", type=int, default=1000, help="slowed verdicts for each kind")
    parser.add_argument("--seed", type=int, default=6)
    given = parser.parse_args()
    began = time.perf_counter()
    alarms, power = study_false_alarms(given.verdicts, given.seed), study_power(given.trials, given.seed)
    rows = [{"choice": choice, "false_alarms": alarms[choice], "power": power[choice]} for choice in CHOICES]
    facts = {"effect": EFFECT, "seed": given.seed, "rows": rows}
    path = write_results("weight", began, facts)
    print_table(
        ["degrees of freedom", *(f"false: {name}" for name in QUIET), *(f"+3 %: {kind}" for kind in KINDS)],
        [
            [
                row["choice"],
                *(f"{one['rate']:.2%} ({one['upper95']:.2%})" for one in row["false_alarms"].values()),
                *(f"{one['rate']:.1%} ({one['lower95']:.1%})" for one in row["power"].values()),
            ]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
