"""How large an effect must be to be found, asked before anything is measured: the power of the test of one metric.

Around an effect e, the mean of k blocks of spread s in a session whose offset spreads by tau is normal with variance
tau^2 + s^2/k. Independently of it the moderated variance v is s^2 chi2(nu)/nu on nu = nu0 + k - 1 degrees of freedom, as long
as the stored spreads are right. The rule calls a regression when the mean exceeds both t sqrt(tau^2 + v/k) and Delta/2.
Without an offset the first alone has noncentral t power (Johnson, Kotz and Balakrishnan, "Continuous Univariate Distributions"
2 (1995), chapter 31); with the second one averages the normal tail over v.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from perfgate.stats import special
from perfgate.stats.moderated import find_quantile

POWER = 0.90
NODES = 400
_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTest:
    """One metric's test at one look; all numbers on the log scale.

    `block_sd` is the spread of one block's difference, `prior_df` what the stored spread is worth in degrees of freedom,
    `alpha` what this metric may spend at this look, `floor` the mean difference that must be exceeded in any case (Delta/2).
    `offset_sd` is the spread of what favours one arm for a whole session, known from `offset_df` sessions.
    """

    blocks: int
    block_sd: float
    prior_df: float
    alpha: float
    floor: float = 0.0
    offset_sd: float = 0.0
    offset_df: float = 0.0

    @property
    def df(self) -> float:
        """Degrees of freedom of the moderated variance."""
        return self.prior_df + self.blocks - 1

    @property
    def standard_error(self) -> float:
        """The true standard error of the mean difference."""
        return sqrt(self.offset_sd**2 + self.block_sd**2 / self.blocks)

    def estimate_errors(self) -> NDArray[np.float64]:
        """The standard errors that the rule may estimate, each as likely as the next; shape (NODES,)."""
        ratios: NDArray[np.float64] = np.sqrt(self.offset_sd**2 + (self.block_sd * _spread_ratios(self.df)) ** 2 / self.blocks)
        return ratios

    @property
    def error_df(self) -> float:
        """Degrees of freedom of the standard error: Satterthwaite's, as `stats.moderated` has them."""
        if not self.offset_sd:
            return self.df
        of_mean = self.block_sd**2 / self.blocks
        return self.standard_error**4 / (self.offset_sd**4 / self.offset_df + of_mean**2 / self.df)


def find_power(trial: MetricTest, effect: float) -> float:
    """Return the probability that a true log `effect` is called a regression at this look."""
    if trial.df <= 0:
        return 0.0
    if trial.standard_error == 0:
        return 1.0 if effect > trial.floor else 0.0
    critical = find_quantile(1 - trial.alpha, trial.error_df)
    lines = np.maximum(critical * trial.estimate_errors(), trial.floor)
    return float(special.ndtr((effect - lines) / trial.standard_error).mean())


def find_smallest_effect(trial: MetricTest, power: float = POWER) -> float:
    """Return the smallest log effect that is found with probability `power` < 1; infinite where no effect ever is."""
    if trial.df <= 0:
        return inf
    low, high = 0.0, max(trial.standard_error, trial.floor, 1e-9)
    while find_power(trial, high) < power:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if find_power(trial, middle) >= power else (middle, high)
    return high


@lru_cache(maxsize=256)
def _spread_ratios(df: float) -> NDArray[np.float64]:
    """The estimated over the true spread at the midpoints of NODES equally likely slices of chi-square; shape (NODES,)."""
    ratios: NDArray[np.float64] = np.sqrt(2.0 * special.gammaincinv(df / 2.0, (np.arange(NODES) + 0.5) / NODES) / df)
    return ratios
