"""Whether `perfgate power` tells the truth: losses of the size that it says are found 9 times in 10, and how often they are.

Usage: python -m benchmarks.verdict.prediction [--trials 1000] [--seed 7]
One metric at a time is slowed down by what the formula of `perfgate.stats.power` promises for 3 blocks of 3 windows, from the
spread that 2,000 A/A blocks of the same noise have; the formula knows nothing of phi, of stalls or of heavy tails.

Then the design that `perfgate power --design` calls the cheapest for a loss is measured: it chooses by a past of 8 sessions of
4 blocks of 3 windows, and the loss is looked for in sessions of that design, each with a past of its own and the same design.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from math import expm1, log1p, sqrt
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.cases import AS_RECORDED, GATES, OFFSET, make_noise
from benchmarks.verdict.gate import ALPHA, LOOKS, SESSION_BLOCKS, Batch, Design, draw_batch
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import DEFAULT, Noise, draw_windows, to_values
from perfgate.core import Arm, Fingerprint, Outcome
from perfgate.metrics import METRICS
from perfgate.scenario.catalog import load_scenario
from perfgate.stats.looks import LookPlan, decide
from perfgate.stats.moderated import Prior
from perfgate.stats.power import POWER, MetricTest, find_smallest_effect
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.design import PricedDesign, choose_designs
from perfgate.verdict.noise import Anchor, NoiseModel, StoredStart
from perfgate.verdict.power import Cost, Study

BLOCKS, A_A_BLOCKS = 3, 2000
SHOWN = ("median_itl_ms", "mean_itl_ms", "p95_itl_ms", "p99_itl_ms", "output_tok_per_s")
NOISES = {"with stalls": DEFAULT, "no stalls": replace(DEFAULT, stall_rate=0.0)}


DESIGN_NOISES = {
    "windows alone": make_noise(),
    "as recorded, without offset": make_noise(AS_RECORDED),
    "as recorded, half the offset": make_noise(AS_RECORDED, tuple(one / 2 for one in OFFSET)),
}
DESIGN_SESSIONS, PASTS = 8, 12
EFFECT = 0.03
SCENARIO = "gpt-oss-20b-shape-mxfp4-closed-c16"


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


def study_designs(trials: int, seed: int) -> list[dict[str, Any]]:
    """A row for each noise and metric: what the cheapest designs of PASTS pasts promise, cost and find, on average.

    A past that is too restless for any design of what was tried, or that asks for more sessions of equal arms, has none.
    """
    rows = []
    for number, (label, noise) in enumerate(DESIGN_NOISES.items()):
        studies = [draw_study(np.random.default_rng([seed, 2, number, past]), noise) for past in range(PASTS)]
        for metric in ("output_tok_per_s", "median_itl_ms"):
            chosen = [choose_designs(study, EFFECT, metric).best for study in studies]
            plans = [best for best in chosen if best is not None and best.sessions == DESIGN_SESSIONS]
            each = trials // len(plans)
            found = sum(
                count_design(np.random.default_rng([seed, 3, number, past]), noise, metric, best, each)
                for past, best in enumerate(plans)
            )
            rows.append(
                {
                    "noise": label,
                    "metric": metric,
                    "effect": EFFECT,
                    "pasts": PASTS,
                    "designs": len(plans),
                    "minutes": fmean(best.minutes or 0.0 for best in plans),
                    "power": fmean(best.power or 0.0 for best in plans),
                    "found": as_rate(found, each * len(plans)),
                }
            )
    return rows


def draw_study(rng: np.random.Generator, noise: Noise) -> Study:
    """Noise as a calibration of DESIGN_SESSIONS sessions of equal arms would have stored it, priced as closed-c16 was."""
    scenario = load_scenario(SCENARIO)
    windows = to_values(noise, draw_windows(rng, noise, (DESIGN_SESSIONS, SESSION_BLOCKS, scenario.blocks.windows)))
    places = [(one, block, arm) for one in range(DESIGN_SESSIONS) for block in range(SESSION_BLOCKS) for arm in range(len(Arm))]
    starts = tuple(
        StoredStart(
            session=f"{one}", block=block + 1, arm=list(Arm)[arm], epoch=1, is_aa=True, at="", commit="", environment=""
        )
        for one, block, arm in places
    )
    metrics = {
        metric: NoiseModel(
            metric=metric,
            starts=starts,
            values=tuple(tuple(windows[(*place, slice(None), index)].tolist()) for place in places),
            anchor=Anchor(log_mean=0.0, at="", release=""),
        )
        for index, metric in enumerate(noise.metrics)
    }
    baseline = Baseline(
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        fingerprint=Fingerprint(facts={}),
        windows=scenario.blocks.windows,
        resident=scenario.blocks.resident,
        metrics=metrics,
    )
    return Study(baseline=baseline, scenario=scenario, cost=Cost(start_s=21.0, window_s=6.1, warmups=2))


def count_design(rng: np.random.Generator, noise: Noise, metric: str, best: PricedDesign, trials: int) -> int:
    """How often sessions of a design find EFFECT in one metric at their last look, whatever the looks before said.

    Each has been calibrated anew, by DESIGN_SESSIONS sessions of its own design.
    """
    if best.size is None:
        raise ValueError("there is no design to count")
    index, blocks = GATES.index(metric), best.size.blocks
    shorter = noise.scaled(window=best.size.request_ratio**-0.5)
    stored = DESIGN_SESSIONS * SESSION_BLOCKS
    design = Design(noise=shorter, blocks=blocks, windows=best.windows, stored=stored, reruns=False)
    batch = draw_batch(rng, design, trials)
    batch.windows[:, :, 1, :, index] += log1p(EFFECT)
    plan = LookPlan(alpha=ALPHA / len(LOOKS), looks=(blocks,))
    decisions = (decide(series, plan) for series in batch.trials(blocks))
    return sum(decision.findings[index].outcome is Outcome.REGRESSION for decision in decisions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = study(given.trials, given.seed)
    designs = study_designs(given.trials, given.seed)
    facts = {"power": POWER, "seed": given.seed, "trials": given.trials, "rows": rows, "designs": designs}
    path = write_results("prediction", began, facts)
    print_table(
        ["noise", "metric", "promised at 90 %", "found"],
        [[row["noise"], row["metric"], f"{row['effect']:.2%}", f"{row['found']['rate']:.1%}"] for row in rows],
    )
    for row in designs:
        print(row)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
