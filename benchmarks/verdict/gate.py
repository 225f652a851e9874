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
from perfgate.stats.looks import LookPlan, Series, SeriesDecision, decide
from perfgate.stats.moderated import Prior
from perfgate.stats.steady import SENTINEL_METRICS, STEADY_SD, find_stalled
from perfgate.verdict.noise import guard_variance
from perfgate.verdict.policy import MAX_PRIOR_DF, USUAL_RATIO

Floats = NDArray[np.float64]

ALPHA = 0.01
LOOKS = (2, 3, 4, 6)
PLAN = LookPlan(alpha=ALPHA, looks=LOOKS)
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
class Dials:
    """Choices inside the rule, at their present values; `tuning.py` turns them.

    `prior_df` is the most that stored noise weighs. A session counts as noisier by phi / `phi_divisor`, never below 1.
    `pairs` takes the median of all differences between the windows of both arms (Hodges-Lehmann) for a block's D.
    """

    prior_df: int = MAX_PRIOR_DF
    phi_divisor: float = USUAL_RATIO
    pairs: bool = False


PRESENT = Dials()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What one verdict knows of the past: `differences` of A/A blocks as (stored blocks, metrics), and per metric the `usual`
    variance of a difference that the scatter of windows alone would make; zero where windows are not known.
    """

    differences: Floats
    usual: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Many verdicts' evidence.

    `windows` is (trials, blocks, 2 arms, windows, metrics); `stored` holds A/A differences as (trials, stored blocks, metrics)
    and `spread` the usual variance within a stored start as (trials, metrics).
    """

    metrics: tuple[str, ...]
    windows: Floats
    stored: Floats
    spread: Floats
    dials: Dials = PRESENT

    def __len__(self) -> int:
        """The number of verdicts."""
        return len(self.windows)

    def trials(self, blocks: int | None = None) -> Iterator[list[Series]]:
        """Each verdict's evidence as the rule takes it, cut to the first `blocks` blocks."""
        margins = [log1p(METRICS[name].margin_ratio) for name in self.metrics]
        differences = find_differences(self.windows, self.dials)[:, :blocks]
        inflations = find_inflations(self.windows, self.spread, self.dials)[:, :blocks]
        usual = 2 * self.spread / self.windows.shape[3]
        for index in range(len(self)):
            stored = Stored(differences=self.stored[index], usual=usual[index])
            yield make_series(differences[index], stored, margins, inflations[index], self.dials)


def draw_batch(
    rng: np.random.Generator, design: Design, count: int, effect: Floats | None = None, dials: Dials = PRESENT
) -> Batch:
    """Draw `count` independent verdicts, each with its own stored A/A blocks."""
    windows = _measure(rng, design.noise, design, (count, design.blocks), effect)
    sessions = -(-design.stored // SESSION_BLOCKS)
    quiet = _measure(rng, design.stored_noise or design.noise, design, (count * sessions, SESSION_BLOCKS), None)
    past = quiet.reshape(count, sessions * SESSION_BLOCKS, *quiet.shape[2:])[:, : design.stored]
    spread = np.median(find_spreads(past).reshape(count, -1, past.shape[-1]), axis=1)
    stored = find_differences(past, dials)
    return Batch(metrics=design.noise.metrics, windows=windows, stored=stored, spread=spread, dials=dials)


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


def find_differences(windows: Floats, dials: Dials = PRESENT) -> Floats:
    """The D of each block, median window of the candidate minus median window of the base; (trials, blocks, metrics)."""
    if dials.pairs:
        apart = windows[:, :, 1, :, None] - windows[:, :, 0, None]
        every: Floats = np.median(apart.reshape(*apart.shape[:2], -1, apart.shape[-1]), axis=2)
        return every
    arms = np.median(windows, axis=3)
    difference: Floats = arms[:, :, 1] - arms[:, :, 0]
    return difference


def find_spreads(windows: Floats) -> Floats:
    """The variance within each start, zero for a single window; (trials, blocks, 2 arms, metrics)."""
    spreads: Floats = windows.var(axis=3, ddof=min(1, windows.shape[3] - 1))
    return spreads


def find_inflations(windows: Floats, usual: Floats, dials: Dials = PRESENT) -> Floats:
    """The phi after each block, at least 1: median variance within a start so far over so many times the stored one.

    Shape (trials, blocks, metrics).
    `perfgate.verdict.series` does this for windows of a session; `spot_check.py` holds the two against each other.
    """
    spreads = find_spreads(windows)
    so_far = [np.median(spreads[:, :block].reshape(len(windows), 2 * block, -1), axis=1) for block in _count(windows)]
    ratios: Floats = np.stack(so_far, axis=1) / np.where(usual > 0, usual, np.inf)[:, None]
    return np.maximum(ratios / dials.phi_divisor, 1.0)


def _count(windows: Floats) -> range:
    return range(1, windows.shape[1] + 1)


def make_series(
    differences: Floats, stored: Stored, margins: list[float], inflations: Floats | None = None, dials: Dials = PRESENT
) -> list[Series]:
    """The evidence of one verdict; `differences` and `inflations` are (blocks, metrics)."""
    blocks = len(stored.differences)
    observed = (stored.differences**2).mean(axis=0).tolist()
    variances = [guard_variance(*pair) for pair in zip(observed, [blocks] * len(observed), stored.usual.tolist(), strict=True)]
    prior_df = float(min(blocks, dials.prior_df))
    phis = [()] * len(margins) if inflations is None else [tuple(column) for column in inflations.T.tolist()]
    return [
        Series(differences=tuple(column), margin_log=margin, prior=Prior(variance=variance, df=prior_df), phi=phi)
        for column, margin, variance, phi in zip(differences.T.tolist(), margins, variances, phis, strict=True)
    ]


def decide_all(batch: Batch, plan: LookPlan = PLAN, blocks: int | None = None) -> list[SeriesDecision]:
    """The rule's decision on each verdict of the batch."""
    return [decide(series, plan) for series in batch.trials(blocks)]


def score_trial(series: list[Series], looks: tuple[int, ...], *, steps: int = 10) -> float:
    """-log10 of the smallest error budget at which the rule calls a regression; 0 when no budget up to 1 makes it.

    A larger budget never withdraws a regression, so halving the range finds it.
    """
    if decide(series, LookPlan(alpha=1.0, looks=looks)).outcome is not Outcome.REGRESSION:
        return 0.0
    low, high = 0.0, 8.0
    for _ in range(steps):
        middle = (low + high) / 2
        if decide(series, LookPlan(alpha=10.0**-middle, looks=looks)).outcome is Outcome.REGRESSION:
            low = middle
        else:
            high = middle
    return low


def score_all(batch: Batch, looks: tuple[int, ...], blocks: int | None = None) -> Floats:
    """`score_trial` of each verdict; (trials,)."""
    return np.array([score_trial(series, looks) for series in batch.trials(blocks)])


NOMINAL_SCORE = -log10(ALPHA)
