"""Ranges of commits with one fault, or none, whose measurements are drawn from the noise that was measured on an NVIDIA H200.

A block's difference is normal around the loss with the stored deviation s0 of one metric of one baseline. What a search knows
beforehand of the noise is drawn anew for each seed, from as many A/A blocks as that baseline has: it does not know s0 itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log1p
from pathlib import Path

import numpy as np

from perfgate.gate.baselines import load_baseline
from perfgate.stats.moderated import Prior

ROOT = Path(__file__).parents[2]
BASELINES = ROOT / "perfgate" / "baselines" / "nvidia-h200-141gb"
COMMITS = 64
LOSS = 0.03
MARGIN = 0.03
TAIL_DF = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """One metric of one stored baseline: the deviation of a block's difference, and how many A/A blocks told it.

    `minutes` is what a block took when it was measured. `tail_df` draws blocks from Student's t of the same deviation.
    """

    scenario: str
    metric: str
    deviation: float
    blocks: int
    minutes: float
    tail_df: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One range: where the fault came in (None: nowhere), and a function that measures blocks of a place."""

    culprit: int | None
    prior: Prior
    measure: Callable[[int, int], tuple[float, ...]]


def load_noise(scenario: str, metric: str, minutes: float, tail_df: float | None = None) -> Noise:
    """Read one metric's noise from the shipped baseline."""
    found = load_baseline(BASELINES / f"{scenario}.json").metrics[metric]
    return Noise(
        scenario=scenario,
        metric=metric,
        deviation=found.block_variance**0.5,
        blocks=found.blocks,
        minutes=minutes,
        tail_df=tail_df,
    )


def draw_range(noise: Noise, seed: int, *, loss: float = LOSS, has_fault: bool = True) -> Range:
    """Draw where the fault is, what is known of the noise, and a machine that measures."""
    rng = np.random.default_rng([seed, noise.blocks])
    culprit = int(rng.integers(1, COMMITS + 1)) if has_fault else None

    def draw(count: int) -> list[float]:
        if noise.tail_df is None:
            return [float(one) for one in rng.normal(0.0, noise.deviation, count)]
        scale = noise.deviation * ((noise.tail_df - 2) / noise.tail_df) ** 0.5
        return [float(one) * scale for one in rng.standard_t(noise.tail_df, count)]

    stored = draw(noise.blocks)

    def measure(place: int, count: int) -> tuple[float, ...]:
        level = log1p(loss) if culprit is not None and place >= culprit else 0.0
        return tuple(level + one for one in draw(count))

    variance = sum(one * one for one in stored) / noise.blocks
    return Range(culprit=culprit, prior=Prior(variance=variance, df=float(noise.blocks)), measure=measure)
