"""How often replays ended how, with bounds that do not count one block twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.replays import Replayed
from benchmarks.verdict.record import as_rate
from perfgate.core import Outcome

RESAMPLES = 2000
SEED = 20261121

Rate = dict[str, Any]


def tally(found: Sequence[Replayed], disjoint: Sequence[Replayed], blocks: int, whole_s: float | None = None) -> dict[str, Any]:
    """Everything that is counted over the replays of one length; `disjoint` are verdicts that share no block.

    `whole_s` is what a session takes that is still undecided at its last look. A replay that ends undecided for want of blocks
    is charged that much; None where the replays are as long as a session may be.
    """
    metrics = sorted({name for one in found for name in one.alone})
    subsets = np.array([[index for index, _ in one.pick] for one in found])
    fails = np.array([is_regression(one) for one in found], dtype=float)
    minutes = [(whole_s if whole_s is not None and is_inconclusive(one) else one.machine_s) / 60 for one in found]
    return {
        "replays": len(found),
        "disjoint": len(disjoint),
        "outcomes": dict(sorted(Counter(one.outcome.value for one in found).items())),
        "regression": rate_with_bounds(found, disjoint, is_regression) | {"bootstrap": resample_blocks(subsets, fails, blocks)},
        "inconclusive": count_rate(found, is_inconclusive),
        "blocks_used": round(mean(one.blocks for one in found), 3),
        "minutes": {
            "median": round(median(minutes), 3),
            "p90": round(float(np.percentile(minutes, 90)), 3),
            "charged_whole": 0 if whole_s is None else sum(map(is_inconclusive, found)),
        },
        "alone": {
            name: {
                "regression": rate_with_bounds(found, disjoint, _alone(name, Outcome.REGRESSION)),
                "inconclusive": count_rate(found, _alone(name, Outcome.INCONCLUSIVE)),
            }
            for name in metrics
        },
    }


def is_regression(one: Replayed) -> bool:
    """Whether the verdict fails the change."""
    return one.outcome is Outcome.REGRESSION


def is_inconclusive(one: Replayed) -> bool:
    """Whether the verdict leaves it open."""
    return one.outcome is Outcome.INCONCLUSIVE


def _alone(metric: str, outcome: Outcome) -> Callable[[Replayed], bool]:
    return lambda one: one.alone.get(metric) is outcome


def rate_with_bounds(found: Sequence[Replayed], disjoint: Sequence[Replayed], hit: Callable[[Replayed], bool]) -> Rate:
    """The share of replays that `hit`, and that of verdicts that share no block, each with one-sided 95 % bounds.

    The bounds take verdicts for independent, which replays are not; those of `disjoint` are exact.
    """
    return count_rate(found, hit) | {"disjoint": count_rate(disjoint, hit) if disjoint else None}


def count_rate(found: Sequence[Replayed], hit: Callable[[Replayed], bool]) -> Rate:
    """The share of replays that `hit`."""
    return as_rate(sum(map(hit, found)), len(found))


def resample_blocks(
    subsets: NDArray[np.int64], hits: NDArray[np.float64], blocks: int, resamples: int = RESAMPLES
) -> dict[str, float] | None:
    """One-sided 95 % bounds of the share of replays that hit, with blocks drawn again with replacement.

    Each resample gives a block the number of times it was drawn, and a replay the product over its blocks: the bootstrap of a
    U statistic (Arcones and Gine, "On the bootstrap of U and V statistics", Annals of Statistics 20, 1992), without the replays
    that would hold one block twice. None where there is one set of blocks only: then nothing varies. Where no replay hit, or
    every one did, no resample can differ either, and the bounds say nothing beyond the blocks at hand.
    """
    distinct, place = np.unique(subsets, axis=0, return_inverse=True)
    if len(distinct) < 2:
        return None
    # Exchanged labels share their blocks, so a set of blocks is counted once, with all that was said of it.
    tries = np.bincount(place.ravel()).astype(float)
    found = np.bincount(place.ravel(), weights=hits)
    rng = np.random.default_rng(SEED)
    shares = []
    for _ in range(resamples):
        drawn = np.bincount(rng.integers(blocks, size=blocks), minlength=blocks)
        weights = drawn[distinct].prod(axis=1)
        if weights.any():
            shares.append(float(weights @ found / (weights @ tries)))
    return {"lower95": round(float(np.quantile(shares, 0.05)), 6), "upper95": round(float(np.quantile(shares, 0.95)), 6)}
