"""Student's t distribution, asked for the same few points over and over, so remembered."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf, isinf

from perfgate.stats import MEMORY


@lru_cache(maxsize=MEMORY)
def find_quantile(probability: float, df: float) -> float:
    """Return t with P(T <= t) = `probability` at `df` > 0 degrees of freedom (Student 1908; scipy's stdtrit)."""
    from scipy.special import stdtrit  # noqa: PLC0415 - scipy costs half a second that `perfgate --help` must not pay

    return float(stdtrit(df, probability))


def find_upper_tail(t: float, df: float) -> float:
    """Return P(T > `t`) at `df` > 0 degrees of freedom; infinite `t` is allowed."""
    if isinf(t):
        return 0.0 if t > 0 else 1.0
    return float(_load_distribution()(df, -t))


@cache
def _load_distribution() -> Callable[[float, float], float]:
    from scipy.special import stdtr  # noqa: PLC0415 - as above

    distribution: Callable[[float, float], float] = stdtr
    return distribution


def standardise(mean: float, standard_error: float) -> float:
    """Return mean over standard error; where nothing varies, zero for no effect and infinity for any."""
    if standard_error > 0:
        return mean / standard_error
    return inf if mean > 0 else -inf if mean < 0 else 0.0
