"""Student's t distribution, asked for the same few points over and over, so remembered."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, isinf, log
from statistics import NormalDist

from perfgate.stats import MEMORY
from perfgate.stats.beta import find_front, find_incomplete

# A Newton step this small, relative to t, moves nothing that a double could hold.
_SETTLED = 1e-15
_MAX_STEPS = 200
_ENDS = {0.0: -inf, 0.5: 0.0, 1.0: inf}


@lru_cache(maxsize=MEMORY)
def find_quantile(probability: float, df: float) -> float:
    """Return t with P(T <= t) = `probability` at `df` > 0 degrees of freedom.

    Newton's method for log P(T > t) as a function of log t. The density of log |T| is log-concave, hence so is its survival
    function: from the second step on, each lands between the root and where it came from, and nothing needs a bracket.
    """
    if probability in _ENDS:
        return _ENDS[probability]
    tail = min(probability, 1.0 - probability)
    normal = -NormalDist().inv_cdf(tail)
    t = normal + (normal**3 + normal) / (4.0 * df)  # Abramowitz and Stegun 26.7.5
    for number in range(_MAX_STEPS):
        found = find_upper_tail(t, df)
        step = log(found / tail) * found / _find_density(t, df)
        t *= exp(step)
        # After the first, every step goes down until rounding is all that is left.
        if abs(step) < _SETTLED or (number and step > 0):
            break
    return t if probability > 0.5 else -t


def find_upper_tail(t: float, df: float) -> float:
    """Return P(T > `t`) at `df` > 0 degrees of freedom; infinite `t` is allowed.

    P(|T| > t) = I_x(df/2, 1/2) at x = df / (df + t^2): Abramowitz and Stegun 26.5.27.
    """
    if isinf(t):
        return 0.0 if t > 0 else 1.0
    beyond = _find_beyond(abs(t), df)
    return beyond if t > 0 else 1.0 - beyond


# Remembered for the asker of the other side: "no worse" and "no better" need the same number.
@lru_cache(maxsize=MEMORY)
def _find_beyond(distance: float, df: float) -> float:
    square = distance * distance
    return 0.5 * find_incomplete(0.5 * df, 0.5, df / (df + square), square / (df + square))


def _find_density(t: float, df: float) -> float:
    """The density of log T at log `t`: t times the density of T."""
    square = t * t
    return find_front(0.5 * df, 0.5, df / (df + square), square / (df + square))


def standardise(mean: float, standard_error: float) -> float:
    """Return mean over standard error; where nothing varies, zero for no effect and infinity for any."""
    if standard_error > 0:
        return mean / standard_error
    return inf if mean > 0 else -inf if mean < 0 else 0.0
