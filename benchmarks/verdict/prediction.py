"""Whether `perfgate power` tells the truth: losses of the size that it says are found 9 times in 10, and how often they are.

Usage: python -m benchmarks.verdict.prediction [--trials 1000] [--seed 7]
One metric at a time is slowed down by what the formula of `perfgate.stats.power` promises for 3 blocks of 3 windows, from the
spread that 2,000 A/A blocks of the same noise have; the formula knows nothing of phi, of stalls or of heavy tails.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from math import expm1, log1p, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.gate import ALPHA, LOOKS, Batch, Design, draw_batch
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import DEFAULT
from perfgate.core import Outcome
from perfgate.metrics import METRICS
from perfgate.stats.looks import LookPlan, decide
from perfgate.stats.moderated import Prior
from perfgate.stats.power import POWER, MetricTest, find_smallest_effect

BLOCKS, A_A_BLOCKS = 3, 2000
SHOWN = ("median_itl_ms", "mean_itl_ms", "p95_itl_ms", "p99_itl_ms", "output_tok_per_s")
NOISES = {"with stalls": DEFAULT, "no stalls": replace(DEFAULT, stall_rate=0.0)}


def promise(metric: str, block_sd: float, prior: Prior) -> float:
    """The log effect that `perfgate power` says is found with 90 % power at the look after 3 blocks."""
    trial = MetricTest(
        blocks=BLOCKS,
        block_sd=block_sd,
        prior_df=prior.df,
        offset_sd=sqrt(prior.offset_variance),
        offset_df=prior.offset_df,
        alpha=ALPHA / len(LOOKS) / len(DEFAULT.metrics),
        floor=log1p(METRICS[metric].margin_ratio) / 2.0,
    )
    return find_smallest_effect(trial)


def count_found(batch: Batch, index: int) -> int:
    """How often the metric at `index` is called a REGRESSION by the look after 3 blocks alone."""
    plan = LookPlan(alpha=ALPHA / len(LOOKS), looks=(BLOCKS,))
    decisions = (decide(series, plan) for series in batch.trials(BLOCKS))
    return sum(decision.findings[index].outcome is Outcome.REGRESSION for decision in decisions)


def study(trials: int, seed: int) -> list[dict[str, Any]]:
    """One row for each noise and metric."""
    rows = []
    for label, noise in NOISES.items():
        design = Design(noise=noise, blocks=BLOCKS)
        past = draw_batch(np.random.default_rng([seed, 0]), design, A_A_BLOCKS // 20, None)
        quiet = draw_batch(np.random.default_rng([seed, 1]), design, trials, None)
        for metric in SHOWN:
            index = quiet.metrics.index(metric)
            effect = promise(metric, _find_spread(past, index), _find_prior(past, index))
            slowed = quiet.windows.copy()
            slowed[:, :, 1, :, index] += effect
            found = count_found(replace(quiet, windows=slowed), index)
            rows.append({"noise": label, "metric": metric, "effect": expm1(effect), "found": as_rate(found, trials)})
    return rows


def _find_spread(batch: Batch, index: int) -> float:
    stored: NDArray[np.float64] = batch.stored[:, :, index]
    return sqrt(float((stored**2).mean()))


def _find_prior(batch: Batch, index: int) -> Prior:
    """The prior whose offset is the middle one of all stored pasts."""
    priors = [batch.find_stored(trial).find_prior(index) for trial in range(len(batch))]
    return sorted(priors, key=lambda prior: prior.offset_variance)[len(priors) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = study(given.trials, given.seed)
    path = write_results("prediction", began, {"power": POWER, "seed": given.seed, "trials": given.trials, "rows": rows})
    print_table(
        ["noise", "metric", "promised at 90 %", "found"],
        [[row["noise"], row["metric"], f"{row['effect']:.2%}", f"{row['found']['rate']:.1%}"] for row in rows],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
