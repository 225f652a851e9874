"""The moderated t statistic: a handful of blocks, steadied by the noise that was stored before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf, sqrt

from perfgate.stats import special

GUARD_BLOCKS = 2
"""How many blocks the scatter of windows is worth against blocks that agree better than it."""


def guard_variance(observed: float, blocks: int, usual: float) -> float:
    """Pull the variance of `blocks` differences up towards `usual`, what the scatter of their windows alone would make it.

    Two or three blocks can agree by chance. The pull weighs GUARD_BLOCKS blocks, so it fades where there are many: what both
    arms share, such as drift, scatters windows and leaves differences alone. It never makes a variance smaller.
    """
    return observed + max(0.0, usual - observed) * GUARD_BLOCKS / (blocks + GUARD_BLOCKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of noise beforehand: the variance of one block's difference, and how many degrees of freedom that is worth.

    `offset_variance` is that of a difference which favours one arm for a whole session; more blocks do not average it.
    """

    variance: float = 0.0
    df: float = 0.0
    offset_variance: float = 0.0
    offset_df: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean difference on the log scale, positive meaning worse, with its standard error and degrees of freedom."""

    mean: float
    standard_error: float
    df: float

    @property
    def p_worse(self) -> float:
        """The one-sided p-value of "no worse"."""
        return self._tail(self.mean)

    @property
    def p_better(self) -> float:
        """The one-sided p-value of "no better"."""
        return self._tail(-self.mean)

    def reach(self, probability: float) -> float:
        """Half the width of the interval whose one-sided coverage is `probability`; infinite without degrees of freedom."""
        if not self.df:
            return inf
        return find_quantile(probability, self.df) * self.standard_error

    def _tail(self, mean: float) -> float:
        return float(special.stdtr(self.df, -standardise(mean, self.standard_error))) if self.df else 1.0


def estimate(differences: Sequence[float], prior: Prior, phi: float = 1.0, usual: float = 0.0) -> Estimate:
    """Estimate the mean of block `differences` with a variance that leans on `prior`.

    v = (nu0 phi s0^2 + (k-1) s_D^2) / (nu0 + k - 1) and SE = sqrt(v / k) on nu0 + k - 1 degrees of freedom: Smyth, "Linear
    models and empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3 (2004), with
    nu0 and s0 from stored blocks instead of parallel genes. `phi` >= 1 inflates the stored part when this session is noisier.
    Where nothing is stored, `usual` guards s_D^2, so that blocks which agree by chance do not pass for a quiet machine.
    With an offset, SE = sqrt(tau^2 + v / k), on the degrees of freedom of Satterthwaite, "An approximate distribution of
    estimates of variance components", Biometrics Bulletin 2 (1946).
    """
    count = len(differences)
    mean = fsum(differences) / count
    squares = fsum((difference - mean) ** 2 for difference in differences)
    df = prior.df + count - 1
    variance = (prior.df * phi * prior.variance + squares) / df if df else inf
    if df and not prior.df:
        variance = guard_variance(variance, count - 1, usual)
    of_mean = variance / count
    if not prior.offset_variance or not df:
        return Estimate(mean=mean, standard_error=sqrt(of_mean), df=df)
    total = prior.offset_variance + of_mean
    weights = prior.offset_variance**2 / prior.offset_df + of_mean**2 / df
    return Estimate(mean=mean, standard_error=sqrt(total), df=total**2 / weights)


def find_quantile(probability: float, df: float) -> float:
    """Return t with P(T <= t) = `probability`, in (0, 1], at `df` > 0 degrees of freedom of Student's t."""
    return float(special.stdtrit(df, probability))


def standardise(mean: float, standard_error: float) -> float:
    """Return mean over standard error; where nothing varies, zero for no effect and infinity for any."""
    if standard_error > 0:
        return mean / standard_error
    return inf if mean > 0 else -inf if mean < 0 else 0.0
