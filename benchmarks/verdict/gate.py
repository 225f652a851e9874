"""Put perfgate's own rule on simulated or published numbers. Every decision is made by `perfgate.stats`, never here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log1p, log10

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.simulator import DEFAULT, Noise, draw_windows
from perfgate.core import Outcome
from perfgate.metrics import METRICS
from perfgate.stats.looks import Decision, Plan, Series, decide
from perfgate.stats.moderated import Prior
from perfgate.stats.steady import SENTINEL_METRICS, STEADY_SD, find_stalled

Floats = NDArray[np.float64]

ALPHA = 0.01
LOOKS = (2, 3, 4, 6)
PLAN = Plan(alpha=ALPHA, looks=LOOKS)
PRIOR_DF = 6.0
STEADY_RATIO = 0.03
SESSION_BLOCKS = 4  # stored A/A blocks come from sessions of this many blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How much is measured, under which noise, and how many A/A blocks were stored before.

    `stored_noise` is the noise of those; left out, it is the same. `reruns` says whether the sentinel rule replaces stalled
    windows.
    """

    noise: Noise = DEFAULT
    stored_noise: Noise | None = None
    blocks: int = 6
    windows: int = 3
    stored: int = 20
    reruns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Many verdicts' evidence.

    `windows` is (trials, blocks, 2 arms, windows, metrics); `stored` holds A/A differences as (trials, stored blocks, metrics).
    """

    metrics: tuple[str, ...]
    windows: Floats
    stored: Floats

    def __len__(self) -> int:
        """The number of verdicts."""
        return len(self.windows)

    def trials(self, blocks: int | None = None) -> Iterator[list[Series]]:
        """Each verdict's evidence as the rule takes it, cut to the first `blocks` blocks."""
        margins = [log1p(METRICS[name].margin) for name in self.metrics]
        for differences, stored in zip(find_differences(self.windows)[:, :blocks], self.stored, strict=True):
            yield make_series(differences, stored, margins)


def draw_batch(rng: np.random.Generator, design: Design, count: int, effect: Floats | None = None) -> Batch:
    """Draw `count` independent verdicts, each with its own stored A/A blocks."""
    windows = _measure(rng, design.noise, design, (count, design.blocks), effect)
    sessions = -(-design.stored // SESSION_BLOCKS)
    quiet = _measure(rng, design.stored_noise or design.noise, design, (count * sessions, SESSION_BLOCKS), None)
    stored = find_differences(quiet).reshape(count, sessions * SESSION_BLOCKS, -1)[:, : design.stored]
    return Batch(metrics=design.noise.metrics, windows=windows, stored=stored)


def _measure(rng: np.random.Generator, noise: Noise, design: Design, shape: tuple[int, int], effect: Floats | None) -> Floats:
    """Draw the windows of (sessions, blocks) and apply the sentinel rule; one more window per start is at hand for it."""
    drawn = draw_windows(rng, noise, (*shape, design.windows + design.reruns), effect)
    return replace_stalled(noise, drawn) if design.reruns else drawn


def replace_stalled(noise: Noise, drawn: Floats) -> Floats:
    """Replace the window that the sentinel rule rejects, in each start that has one, by the start's last window.

    The rule itself is asked only about starts in which some sentinel metric stands out, since no other can fail it.
    """
    measured, spare = drawn[..., :-1, :].copy(), drawn[..., -1, :]
    columns = [noise.metrics.index(name) for name in SENTINEL_METRICS]
    known = {name: noise.spreads[name].window for name in SENTINEL_METRICS}
    sentinels = measured[..., columns]
    spreads = np.maximum([known[name] for name in SENTINEL_METRICS], STEADY_RATIO / STEADY_SD)
    stands_out = ((sentinels - np.median(sentinels, axis=-2, keepdims=True)) / spreads).max(axis=(-2, -1)) > STEADY_SD
    for place in zip(*np.nonzero(stands_out), strict=True):
        windows = [dict(zip(SENTINEL_METRICS, values, strict=True)) for values in sentinels[place].tolist()]
        stalled = find_stalled(windows, STEADY_RATIO, known)
        if stalled is not None:
            measured[(*place, stalled)] = spare[place]
    return measured


def find_differences(windows: Floats) -> Floats:
    """The D of each block: median window of the candidate minus median window of the base; (trials, blocks, metrics)."""
    arms = np.median(windows, axis=3)
    difference: Floats = arms[:, :, 1] - arms[:, :, 0]
    return difference


def make_series(differences: Floats, stored: Floats, margins: list[float]) -> list[Series]:
    """The evidence of one verdict; `differences` is (blocks, metrics) and `stored` (stored blocks, metrics)."""
    variances = (stored**2).mean(axis=0).tolist()
    df = min(float(len(stored)), PRIOR_DF)
    return [
        Series(differences=tuple(column), margin=margin, prior=Prior(variance=variance, df=df))
        for column, margin, variance in zip(differences.T.tolist(), margins, variances, strict=True)
    ]


def decide_all(batch: Batch, plan: Plan = PLAN, blocks: int | None = None) -> list[Decision]:
    """The rule's decision on each verdict of the batch."""
    return [decide(series, plan) for series in batch.trials(blocks)]


def score_trial(series: list[Series], looks: tuple[int, ...], *, steps: int = 14) -> float:
    """-log10 of the smallest error budget at which the rule calls a regression; 0 when no budget up to 1 makes it.

    A larger budget never withdraws a regression, so halving the range finds it.
    """
    if decide(series, Plan(alpha=1.0, looks=looks)).outcome is not Outcome.REGRESSION:
        return 0.0
    low, high = 0.0, 12.0
    for _ in range(steps):
        middle = (low + high) / 2
        if decide(series, Plan(alpha=10.0**-middle, looks=looks)).outcome is Outcome.REGRESSION:
            low = middle
        else:
            high = middle
    return low


def score_all(batch: Batch, looks: tuple[int, ...], blocks: int | None = None) -> Floats:
    """`score_trial` of each verdict; (trials,)."""
    return np.array([score_trial(series, looks) for series in batch.trials(blocks)])


NOMINAL_SCORE = -log10(ALPHA)
