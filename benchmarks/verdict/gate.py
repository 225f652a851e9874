"""Put perfgate's own rule on simulated or published numbers. Every decision is made by `perfgate.stats`, never here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log1p, log10
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.simulator import DEFAULT, Noise, draw_windows
from perfgate.core import Outcome
from perfgate.metrics import METRICS
from perfgate.stats.components import find_offset_variance
from perfgate.stats.looks import CONFIDENCE, LookPlan, Series, SeriesDecision, decide
from perfgate.stats.moderated import Prior, guard_variance
from perfgate.stats.steady import SENTINEL_METRICS, STEADY_SD, find_stalled
from perfgate.verdict.policy import (
    MAX_PRIOR_DF,
    MAX_PRIOR_DF_OTHER,
    NO_BLOCKS,
    USUAL_RATIO,
    StoredBlocks,
    build_prior,
)

Floats = NDArray[np.float64]

ALPHA = 0.01
LOOKS = (2, 4, 6)
PLAN = LookPlan(alpha=ALPHA, looks=LOOKS)
STEADY_RATIO = 0.03
SESSION_BLOCKS = 4  # stored A/A blocks come from sessions of this many blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How much is measured, under which noise, and how many A/A blocks were stored before, in sessions of `session_blocks`.

    `stored_noise` is the noise of those; left out, it is the same. `reruns` says whether the sentinel rule replaces stalled
    windows. `is_same_host` is False where they were stored on another kind of host.
    """

    noise: Noise = DEFAULT
    stored_noise: Noise | None = None
    blocks: int = 6
    windows: int = 3
    stored: int = 20
    session_blocks: int = SESSION_BLOCKS
    reruns: bool = True
    is_same_host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerPlan(LookPlan):
    """Rule 2026-11.8: each look passes by a bound of its own 95 %."""

    @property
    def confidence_look(self) -> float:
        """The same for any number of looks."""
        return CONFIDENCE


def list_rules() -> Mapping[str, LookPlan]:
    """The plan of the rule that ships, and of rule 2026-11.8; each as it shipped its looks."""
    return {"present": PLAN, "former": FormerPlan(alpha=ALPHA, looks=(2, 3, 4, 6))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What one verdict knows of the past: `differences` of A/A blocks as (stored blocks, metrics), and per metric the `usual`
    variance of a difference that the scatter of windows alone would make; zero where windows are not known.

    `session_blocks` blocks of one session stand behind each other. `is_same_host` and `is_former` are those of `Batch`.
    """

    differences: Floats
    usual: Floats
    session_blocks: int = SESSION_BLOCKS
    is_same_host: bool = True
    is_former: bool = False

    def find_prior(self, metric: int) -> Prior:
        """The prior of one metric: the rule's, or that of rule 2026-11.8."""
        values: list[float] = self.differences[:, metric].tolist()
        if not values:
            return Prior() if self.is_former else build_prior(NO_BLOCKS, MAX_PRIOR_DF)
        variance = guard_variance(fmean(value * value for value in values), len(values), float(self.usual[metric]))
        if self.is_former:
            return Prior(variance=variance, df=min(len(values), MAX_PRIOR_DF if self.is_same_host else MAX_PRIOR_DF_OTHER))
        sessions = [values[first : first + self.session_blocks] for first in range(0, len(values), self.session_blocks)]
        known = StoredBlocks(
            blocks=len(values), sessions=len(sessions), variance=variance, offset_variance=find_offset_variance(sessions)
        )
        most = MAX_PRIOR_DF if self.is_same_host else MAX_PRIOR_DF_OTHER
        return build_prior(known, most, is_same_host=self.is_same_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Many verdicts' evidence.

    `windows` is (trials, blocks, 2 arms, windows, metrics); `stored` holds A/A differences as (trials, stored blocks, metrics)
    and `spread` the usual variance within a stored start as (trials, metrics). `is_former` judges by rule 2026-11.8.
    """

    metrics: tuple[str, ...]
    windows: Floats
    stored: Floats
    spread: Floats
    design: Design
    is_former: bool = False

    def __len__(self) -> int:
        """The number of verdicts."""
        return len(self.windows)

    def trials(self, blocks: int | None = None) -> Iterator[list[Series]]:
        """Each verdict's evidence as the rule takes it, cut to the first `blocks` blocks."""
        margins = [log1p(METRICS[name].margin_ratio) for name in self.metrics]
        differences = find_differences(self.windows)[:, :blocks]
        spreads = find_medians(self.windows)[:, :blocks]
        inflations = find_inflations(spreads, self.spread)
        usual = np.zeros_like(spreads) if self.is_former else 2 * spreads / self.windows.shape[3]
        for index in range(len(self)):
            yield make_series(differences[index], self.find_stored(index), margins, inflations[index], usual[index])

    def find_stored(self, index: int) -> Stored:
        """What verdict `index` knows of the past."""
        return Stored(
            differences=self.stored[index],
            usual=2 * self.spread[index] / self.windows.shape[3],
            session_blocks=self.design.session_blocks,
            is_same_host=self.design.is_same_host,
            is_former=self.is_former,
        )


def draw_batch(rng: np.random.Generator, design: Design, count: int, effect: Floats | None = None) -> Batch:
    """Draw `count` independent verdicts, each with its own stored A/A blocks."""
    windows = _measure(rng, design.noise, design, (count, design.blocks), effect)
    metrics = len(design.noise.metrics)
    if not design.stored:
        stored, spread = np.zeros((count, 0, metrics)), np.zeros((count, metrics))
        return Batch(metrics=design.noise.metrics, windows=windows, stored=stored, spread=spread, design=design)
    size = design.session_blocks
    sessions = -(-design.stored // size)
    quiet = _measure(rng, design.stored_noise or design.noise, design, (count * sessions, size), None)
    past = quiet.reshape(count, sessions * size, *quiet.shape[2:])[:, : design.stored]
    spread = np.median(find_spreads(past).reshape(count, -1, metrics), axis=1)
    return Batch(metrics=design.noise.metrics, windows=windows, stored=find_differences(past), spread=spread, design=design)


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
    """The D of each block, median window of the candidate minus median window of the base; (trials, blocks, metrics)."""
    arms = np.median(windows, axis=3)
    difference: Floats = arms[:, :, 1] - arms[:, :, 0]
    return difference


def find_spreads(windows: Floats) -> Floats:
    """The variance within each start, zero for a single window; (trials, blocks, 2 arms, metrics)."""
    spreads: Floats = windows.var(axis=3, ddof=min(1, windows.shape[3] - 1))
    return spreads


def find_medians(windows: Floats) -> Floats:
    """The median variance within a start so far, after each block; (trials, blocks, metrics).

    `perfgate.verdict.series` does this for windows of a session; `spot_check.py` holds the two against each other.
    """
    spreads = find_spreads(windows)
    so_far = [np.median(spreads[:, :block].reshape(len(windows), 2 * block, -1), axis=1) for block in _count(windows)]
    medians: Floats = np.stack(so_far, axis=1)
    return medians


def find_inflations(spreads: Floats, usual: Floats) -> Floats:
    """The phi after each block, at least 1: `spreads` of `find_medians` over so many times the stored one; of their shape."""
    ratios: Floats = spreads / np.where(usual > 0, usual, np.inf)[:, None]
    return np.maximum(ratios / USUAL_RATIO, 1.0)


def _count(windows: Floats) -> range:
    return range(1, windows.shape[1] + 1)


def make_series(
    differences: Floats, stored: Stored, margins: list[float], inflations: Floats | None = None, usual: Floats | None = None
) -> list[Series]:
    """The evidence of one verdict; `differences`, `inflations` and `usual` are (blocks, metrics)."""
    phis = [()] * len(margins) if inflations is None else [tuple(column) for column in inflations.T.tolist()]
    usuals = [()] * len(margins) if usual is None else [tuple(column) for column in usual.T.tolist()]
    return [
        Series(differences=tuple(column), margin_log=margin, prior=stored.find_prior(metric), phi=phi, usual=of_windows)
        for metric, (column, margin, phi, of_windows) in enumerate(
            zip(differences.T.tolist(), margins, phis, usuals, strict=True)
        )
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
