"""The rules that people use today, each as a function from the same windows to a score and the limit at which it alarms.

A score says for each trial and metric how alarming the evidence is; the rule alarms when any metric's score exceeds `limit`.
Keeping the two apart lets a script move the limit until all rules raise the same number of false alarms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log10

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a rule may look at. Each array is (trials, runs, metrics) in the metric's own sense; `higher` is (metrics,).

    `history` holds earlier runs of unchanged code, oldest first. An absent kind of evidence has zero runs.
    """

    base: Floats
    candidate: Floats
    history: Floats
    higher: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One rule: its score and the limit its users set.

    `runs` is how many runs of each arm it needs at least, `history` how many earlier runs its users keep.
    """

    name: str
    source: str
    score: Callable[[Evidence], Floats]
    limit: float
    runs: int = 1
    history: int = 0

    def alarms(self, evidence: Evidence, limit: float | None = None) -> NDArray[np.bool_]:
        """Say for each trial whether the rule calls a regression in any metric; shape (trials,)."""
        return self.worst(evidence) > (self.limit if limit is None else limit)

    def worst(self, evidence: Evidence) -> Floats:
        """The most alarming score over the metrics; shape (trials,)."""
        kept = replace(evidence, history=evidence.history[:, -self.history :]) if self.history else evidence
        worst: Floats = self.score(kept).max(axis=-1)
        return worst


def _loss(reference: Floats, value: Floats, higher: NDArray[np.bool_]) -> Floats:
    """The relative loss of `value` against `reference`; positive is worse."""
    change = value / reference - 1.0
    return np.where(higher, -change, change)


def score_change(evidence: Evidence) -> Floats:
    """Relative loss of the candidate's mean against the base's mean."""
    return _loss(evidence.base.mean(axis=1), evidence.candidate.mean(axis=1), evidence.higher)


def score_sigmas(evidence: Evidence) -> Floats:
    """Distance of the candidate's mean from the mean of the history, in sample standard deviations of the history."""
    distance = evidence.candidate.mean(axis=1) - evidence.history.mean(axis=1)
    sigmas: Floats = np.where(evidence.higher, -distance, distance) / evidence.history.std(axis=1, ddof=1)
    return sigmas


def score_mads(evidence: Evidence) -> Floats:
    """Distance of the candidate's median from the median of the history, in 1.4826 median absolute deviations."""
    centre = np.median(evidence.history, axis=1)
    mad = 1.4826 * np.median(np.abs(evidence.history - centre[:, None]), axis=1)
    distance = np.median(evidence.candidate, axis=1) - centre
    mads: Floats = np.where(evidence.higher, -distance, distance) / mad
    return mads


def score_nightly(evidence: Evidence) -> Floats:
    """Relative loss of the candidate's mean against the plain mean of the history."""
    return _loss(evidence.history.mean(axis=1), evidence.candidate.mean(axis=1), evidence.higher)


def score_best_level(evidence: Evidence) -> Floats:
    """Relative loss against the best level: trailing means of three daily values, then their best 5 % point.

    The first two trailing means have fewer than three days and are dropped.
    """
    history = evidence.history
    rolling = (history[:, 2:] + history[:, 1:-1] + history[:, :-2]) / 3.0
    best = np.where(evidence.higher, np.percentile(rolling, 95, axis=1), np.percentile(rolling, 5, axis=1))
    return _loss(best, evidence.candidate.mean(axis=1), evidence.higher)


def score_welch(evidence: Evidence) -> Floats:
    """-log10 of the one-sided p of Welch's t test that the candidate is worse."""
    from scipy.stats import ttest_ind

    base, candidate = _worse_up(evidence)
    return _log_p(ttest_ind(candidate, base, axis=1, equal_var=False, alternative="greater").pvalue)


def score_mann_whitney(evidence: Evidence) -> Floats:
    """-log10 of the one-sided p of the exact Mann-Whitney U test that the candidate is worse."""
    from scipy.stats import mannwhitneyu

    base, candidate = _worse_up(evidence)
    return _log_p(mannwhitneyu(candidate, base, axis=1, alternative="greater", method="exact").pvalue)


def score_benchstat(evidence: Evidence) -> Floats:
    """-log10 of the two-sided exact Mann-Whitney p where the median got worse; 0 elsewhere."""
    from scipy.stats import mannwhitneyu

    base, candidate = _worse_up(evidence)
    log_p = _log_p(mannwhitneyu(candidate, base, axis=1, alternative="two-sided", method="exact").pvalue)
    return np.where(np.median(candidate, axis=1) > np.median(base, axis=1), log_p, 0.0)


def _worse_up(evidence: Evidence) -> tuple[Floats, Floats]:
    sign = np.where(evidence.higher, -1.0, 1.0)
    return evidence.base * sign, evidence.candidate * sign


def _log_p(p_value: Floats) -> Floats:
    log_p: Floats = -np.log10(np.maximum(p_value, 1e-300))
    return log_p


_ALPHA = -log10(0.05)
_BEST = "TensorRT-LLM, README_perf_regression_system.md: P95/P5 of the rolling 3-day mean over 90 days"

RIVALS: tuple[Rival, ...] = (
    Rival(name="fixed 5 %", source="common threshold on one pair", score=score_change, limit=0.05),
    Rival(name="fixed 10 %", source="common threshold on one pair", score=score_change, limit=0.10),
    Rival(name="mean + 3 sd", source="bands from repeated runs", score=score_sigmas, limit=3.0, history=20),
    Rival(name="median + 3 MAD", source="bands from repeated runs", score=score_mads, limit=3.0, history=20),
    Rival(name="Welch t", source="one-sided p < 0.05 in any metric", score=score_welch, limit=_ALPHA, runs=2),
    Rival(name="Mann-Whitney", source="one-sided p < 0.05 in any metric", score=score_mann_whitney, limit=_ALPHA, runs=3),
    Rival(
        name="SGLang nightly 10 %",
        source="SGLang, ci_performance_regression.py: latest run against the mean of the ten before",
        score=score_nightly,
        limit=0.10,
        history=10,
    ),
    Rival(name="TensorRT-LLM 5 %", source=f"{_BEST}, after merge", score=score_best_level, limit=0.05, history=90),
    Rival(name="TensorRT-LLM 10 %", source=f"{_BEST}, before merge", score=score_best_level, limit=0.10, history=90),
    Rival(
        name="benchstat",
        source="golang/perf benchmath: two-sided exact Mann-Whitney at 0.05, median worse",
        score=score_benchstat,
        limit=_ALPHA,
        runs=4,
    ),
)


def limit_at(quiet_scores: Floats, rate: float) -> float:
    """The smallest limit at which at most `rate` (< 1) of the unchanged-code trials alarm; scores are (trials,).

    A rule whose scores tie, as those of rank tests do, may have to stay below the rate.
    """
    ordered = np.sort(quiet_scores)[::-1]
    return float(ordered[int(rate * len(ordered))])
