"""What the rule's own choices cost and buy: false alarms under kind and unkind noise against power with 3 blocks of 3 windows.

Usage: python -m benchmarks.verdict.tuning [--quiet 1000] [--trials 400] [--seed 4]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdict.gate import Design, Dials, decide_all, draw_batch
from benchmarks.verdict.power_curves import DECODING
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import DEFAULT, slow_down
from perfgate.core import Outcome

EFFECT = 0.03
FORMER = Dials(prior_df=6, phi_divisor=1.0)
CHOICES: Mapping[str, Dials] = {
    "former rule: 6 df, phi / 1": FORMER,
    "6 df, phi / 2": Dials(prior_df=6, phi_divisor=2.0),
    "6 df, phi / 3": Dials(prior_df=6, phi_divisor=3.0),
    "12 df, phi / 1": Dials(prior_df=12, phi_divisor=1.0),
    "12 df, phi / 2": Dials(prior_df=12, phi_divisor=2.0),
    "12 df, phi / 3": Dials(prior_df=12, phi_divisor=3.0),
    "20 df, phi / 2": Dials(prior_df=20, phi_divisor=2.0),
    "6 df, phi / 1, all pairs of windows": replace(FORMER, pairs=True),
    "6 df, phi / 2, all pairs": Dials(prior_df=6, phi_divisor=2.0, pairs=True),
    "12 df, phi / 2, all pairs": Dials(prior_df=12, phi_divisor=2.0, pairs=True),
}
QUIET: Mapping[str, Design] = {
    "as assumed": Design(),
    "restless sessions": Design(noise=replace(DEFAULT, unrest=0.405)),
    "stored at half of today's noise": Design(stored_noise=DEFAULT.scaled(start=0.5, window=0.5)),
}
SLOWED: Mapping[str, tuple[Design, tuple[str, ...]]] = {
    "all but TTFT": (Design(blocks=3), DECODING),
    "median ITL alone": (Design(blocks=3), ("median_itl_ms",)),
    "throughput alone": (Design(blocks=3), ("output_tok_per_s",)),
    "throughput alone, no stalls": (Design(blocks=3, noise=replace(DEFAULT, stall_rate=0.0)), ("output_tok_per_s",)),
}


def study(dials: Dials, quiet: int, trials: int, seed: int) -> dict[str, Any]:
    """False alarms of whole verdicts, and power at the third look; every choice sees the same windows."""
    alarms, power = {}, {}
    for name, design in QUIET.items():
        batch = draw_batch(np.random.default_rng([seed, 0]), design, quiet, None, dials)
        alarms[name] = as_rate(_count(decide_all(batch)), quiet)
    for name, (design, only) in SLOWED.items():
        effect = slow_down(DEFAULT.metrics, EFFECT, only)
        batch = draw_batch(np.random.default_rng([seed, 1]), design, trials, effect, dials)
        power[name] = as_rate(_count(decide_all(batch)), trials)
    return {"false_alarms": alarms, "power": power}


def _count(decisions: list[Any]) -> int:
    return sum(decision.outcome is Outcome.REGRESSION for decision in decisions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quiet", type=int, default=1000, help="A/A verdicts for each choice and noise")
    parser.add_argument("--trials", type=int, default=400, help="slowed verdicts for each choice and kind")
    parser.add_argument("--seed", type=int, default=4)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = [{"choice": name, **study(dials, given.quiet, given.trials, given.seed)} for name, dials in CHOICES.items()]
    path = write_results("tuning", began, {"effect": EFFECT, "seed": given.seed, "rows": rows})
    print_table(
        ["choice", *(f"false: {name}" for name in QUIET), *(f"+3 %: {name}" for name in SLOWED)],
        [
            [
                row["choice"],
                *(f"{one['rate']:.2%} ({one['upper95']:.2%})" for one in row["false_alarms"].values()),
                *(f"{one['rate']:.1%}" for one in row["power"].values()),
            ]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
