"""Two arms of plain runs: their difference without a stored variance, and how many runs would be enough."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf, sqrt
from statistics import variance

from perfgate.stats import special
from perfgate.stats.looks import POWER
from perfgate.stats.moderated import Estimate, Prior, find_quantile

# Printed results carry two decimals: values that look equal may still differ by about this much, on the log scale.
SPREAD_FLOOR = 1e-3
# A spread from a few runs is itself a guess: plan with the value that it exceeds only in one case of five.
PLAN_CONFIDENCE = 0.80
PLAN_LIMIT = 1000


def compare_arms(base: Sequence[float], candidate: Sequence[float]) -> Estimate:
    """Estimate the mean of `candidate` minus the mean of `base`, both log badness, allowing unequal variances.

    SE^2 = s1^2/n1 + s2^2/n2 on (SE^2)^2 / sum((s_i^2/n_i)^2 / (n_i - 1)) degrees of freedom: Welch, "The generalization of
    Student's problem when several different population variances are involved", Biometrika 34 (1947). These are rounded down,
    and no more than the runs of the smaller arm: of equal arms of 3 and 10 runs up to 2.0 % would fail at 1 % otherwise, and
    1.2 % do. Without a second run in each arm there are none.
    """
    mean = fsum(candidate) / len(candidate) - fsum(base) / len(base)
    if min(len(base), len(candidate)) < 2:
        return Estimate(mean=mean, standard_error=inf, df=0)
    parts = [(max(variance(arm), SPREAD_FLOOR**2) / len(arm), len(arm) - 1) for arm in (base, candidate)]
    total = fsum(part for part, _ in parts)
    # A whole number of them may come out as the float below it.
    freedom = int(total**2 / fsum(part**2 / df for part, df in parts) + 1e-9)
    return Estimate(mean=mean, standard_error=sqrt(total), df=min(freedom, len(base), len(candidate)))


def compare_with_prior(base: Sequence[float], candidate: Sequence[float], prior: Prior) -> Estimate:
    """Estimate the same difference when stored A/A blocks say how far two fresh starts differ.

    The runs of an arm are taken for one start, so the stored spread of one block's difference is the least standard error,
    however many runs there are; where the runs themselves scatter more, theirs is used.
    """
    plain = compare_arms(base, candidate)
    stored = Estimate(mean=plain.mean, standard_error=sqrt(prior.variance), df=prior.df)
    return stored if not plain.df or stored.standard_error >= plain.standard_error else plain


def pool_spread(base: Sequence[float], candidate: Sequence[float]) -> tuple[float, int]:
    """Return the standard deviation of one run around its arm's mean, and its degrees of freedom; (inf, 0) without any."""
    arms = [arm for arm in (base, candidate) if len(arm) > 1]
    df = sum(len(arm) - 1 for arm in arms)
    if not df:
        return inf, 0
    pooled = sqrt(fsum(variance(arm) * (len(arm) - 1) for arm in arms) / df)
    return max(pooled, SPREAD_FLOOR), df


def bound_spread(spread: float, df: int) -> float:
    """Return the upper confidence limit of a standard deviation: s sqrt(df / chi2), Cochran 1934."""
    return spread * sqrt(df / float(special.chdtri(df, PLAN_CONFIDENCE))) if df else inf


def plan_runs(spread: float, loss_log: float, alpha: float, least: int) -> int | None:
    """Return how many runs an arm settle the question either way, None when `PLAN_LIMIT` do not.

    A log loss of `loss_log` is then found with 90 % power at one-sided level `alpha`, so no change at all passes more surely
    still: (t_alpha + t_power) s sqrt(2/n) <= loss_log (Julious, "Sample sizes for clinical trials", 2010, section 3.3), on as
    many degrees of freedom as `compare_arms` has at most.
    """
    for runs in range(least, PLAN_LIMIT + 1):
        if (find_quantile(1 - alpha, runs) + find_quantile(POWER, runs)) * spread * sqrt(2 / runs) <= loss_log:
            return runs
    return None


def plan_blocks(prior: Prior, loss_log: float, alpha: float) -> int | None:
    """Return how many fresh starts of both arms settle the question either way, given their stored spread; None if too many."""
    for blocks in range(2, PLAN_LIMIT + 1):
        df = prior.df + blocks - 1
        if (find_quantile(1 - alpha, df) + find_quantile(POWER, df)) * sqrt(prior.variance / blocks) <= loss_log:
            return blocks
    return None
