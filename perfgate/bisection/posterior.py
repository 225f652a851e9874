"""Locate a loss of unknown size in a line of versions from noisy differences, and choose where to measure next.

Places are numbered from 1 along the line; place 0 is the version that all others are compared with. If the loss came in at
place i, a block at place j has a mean difference of zero for j < i and of the loss for j >= i. Blocks are normal around it,
with a variance that leans on stored blocks as the verdict's does (`perfgate.stats.moderated`).

Weighing every place by Bayes' rule after each noisy answer is Horstein, "Sequential transmission using noiseless feedback",
IEEE Transactions on Information Theory 9 (1963); that it keeps converging is Waeber, Frazier and Henderson, "Bisection search
with noisy responses", SIAM Journal on Control and Optimization 51 (2013), and what such a search costs at best is Karp and
Kleinberg, "Noisy binary search and its applications", SODA 2007.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import exp, fsum, inf, lgamma, log, pi, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from perfgate.stats import special
from perfgate.stats.moderated import Prior, standardise

Floats = NDArray[np.float64]

EVEN = 0.5
"""Before anything is measured, a loss that came in anywhere is as likely as none."""

NODES = 64
"""Equally likely slices of a normal distribution that an expectation is taken over."""

MAX_SEPARATION = 12.0
"""So many deviations apart, two answers are distinguished for certain; more would overflow."""

FAINT = 1e-9
"""Fewer bits than this are rounding; fewer minutes are not worth dividing by."""

TINY = 1e-16
"""The least variance of a block: what prints the same number every time is still rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The blocks at one place: log differences to place 0, positive meaning worse."""

    place: int
    differences: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """How likely the loss came in at each place, 1 first, and how likely there is none.

    `effect` is the log size of the loss if it came in where that is likeliest, `deviation` that of a block's noise, and
    `misfit` the chance of seeing blocks as uneven as these if there is one loss and the stored noise is right.
    """

    places: tuple[float, ...]
    none: float
    effect: float
    deviation: float
    misfit: float

    @property
    def suspicions(self) -> tuple[float, ...]:
        """For each place from 1 on, how likely the loss is in it: that it came in there or before."""
        return tuple(accumulate(self.places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A measurement that could come next: so many blocks at a place, and what they would cost."""

    place: int
    blocks: int
    minutes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Number, sum and sum of squares of the differences from one place on."""

    count: int
    total: float
    squares: float


def weigh(looks: Iterable[Look], places: int, prior: Prior, floor: float) -> Belief:
    """Weigh every place by all blocks measured so far. Raise ValueError unless the last place was measured.

    The size of the loss is unknown: any log size above `floor` is as likely as any other, at one per unit. Integrating it and
    the variance out of the normal likelihood leaves, for the place whose blocks from there on number n with mean m, N in all,

        (2 pi)^(-(N-1)/2) n^(-1/2) Gamma(a) (V/2)^(-a) P(T > (floor - m) / SE),   a = (nu0 + N - 1) / 2, SE = sqrt(V / (2 a n))

    where V is nu0 s0^2 plus the squares around zero before the place and around m from there on: Smith, "A Bayesian approach to
    inference about a change-point in a sequence of random variables", Biometrika 62 (1975), with the moderated variance.
    """
    tails = _sum_from_each(looks, places)
    if not tails[-1].count:
        raise ValueError("the last place was not measured, so that nothing bounds the size of the loss")
    # Places between which nothing was measured have the same sums: a thousand commits cost no more than the measured ones.
    known = {tail: _weigh_place(tails[0], tail, prior, floor) for tail in set(tails[1:])}
    weights = [known[tail] for tail in tails[1:]]
    nothing = _weigh_nothing(tails[0], prior)
    shares = _normalise([*(weight + log((1 - EVEN) / places) for weight in weights), nothing + log(EVEN)])
    best = tails[1 + max(range(places), key=shares.__getitem__)]
    return Belief(
        places=tuple(shares[:-1]),
        none=shares[-1],
        effect=best.total / best.count,
        deviation=sqrt(_pool(tails[0], best, prior) / max(prior.df + tails[0].count - 1, 1.0)),
        misfit=_find_misfit(tails[0], best, prior),
    )


def _sum_from_each(looks: Iterable[Look], places: int) -> list[_Sums]:
    """Sums over each place and all behind it; the first, over everything that was measured at any place."""
    found: list[list[float]] = [[] for _ in range(places + 1)]
    for look in looks:
        found[look.place].extend(look.differences)
    sums = _Sums(count=0, total=0.0, squares=0.0)
    tails = []
    for values in reversed(found):
        sums = _Sums(
            count=sums.count + len(values),
            total=sums.total + fsum(values),
            squares=sums.squares + fsum(value * value for value in values),
        )
        tails.append(sums)
    return tails[::-1]


def _pool(whole: _Sums, tail: _Sums, prior: Prior) -> float:
    """V: the stored squares, and those of this search around zero before the place and around their mean from there on."""
    squares = max(0.0, whole.squares - tail.total * tail.total / tail.count)
    return max(prior.df * prior.variance + squares, TINY * whole.count)


def _weigh_place(whole: _Sums, tail: _Sums, prior: Prior, floor: float) -> float:
    """The log likelihood of one place."""
    df = prior.df + whole.count - 1
    if df <= 0:
        return 0.0  # one block, nothing stored: any place fits it as well as another
    pooled = _pool(whole, tail, prior)
    above = float(special.stdtr(df, -standardise(floor - tail.total / tail.count, sqrt(pooled / df / tail.count))))
    likelihood = lgamma(df / 2) - df / 2 * log(pooled / 2) - 0.5 * log(tail.count) - (whole.count - 1) / 2 * log(2 * pi)
    return likelihood + (log(above) if above > 0 else -inf)


def _weigh_nothing(whole: _Sums, prior: Prior) -> float:
    """The log likelihood of no loss anywhere: every block scatters around zero."""
    df = prior.df + whole.count
    pooled = max(prior.df * prior.variance + whole.squares, TINY * whole.count)
    return lgamma(df / 2) - df / 2 * log(pooled / 2) - whole.count / 2 * log(2 * pi)


def _normalise(logs: Sequence[float]) -> list[float]:
    top = max(logs)
    shares = [exp(one - top) for one in logs]
    total = fsum(shares)
    return [share / total for share in shares]


def _find_misfit(whole: _Sums, tail: _Sums, prior: Prior) -> float:
    """P(F > f) of this search's variance over the stored one: Abramowitz and Stegun 26.6.2."""
    df = whole.count - 1
    if not df or not prior.df or prior.variance <= 0:
        return 1.0
    ratio = max(0.0, whole.squares - tail.total * tail.total / tail.count) / prior.variance
    return float(special.betainc(prior.df / 2, df / 2, prior.df / (prior.df + ratio)))


def measure_information(suspicions: Sequence[float], separation: float) -> Floats:
    """Bits that one normal answer gives on each yes-no question of probability `suspicions`, means `separation` sd apart.

    The mutual information of question and answer: Lindley, "On a measure of the information provided by an experiment",
    Annals of Mathematical Statistics 27 (1956). Asking where it is largest is what lowers the expected entropy fastest, and no
    plan of more steps does better: Jedynak, Frazier and Sznitman, "Twenty questions with noise", Journal of Applied Probability
    49 (2012), for costs that are equal; that it is divided by the cost here is a rule of thumb.
    """
    apart, nodes = min(abs(separation), MAX_SEPARATION), _list_nodes()
    sure = np.clip(np.array(suspicions, dtype=np.float64), 0.0, 1.0)[:, None]
    # What is certain has a logarithm of zero under its weight of one: no bits, and no logarithm of zero anywhere.
    yes = np.log(sure + (1 - sure) * np.exp(-apart * (nodes + apart / 2))).mean(axis=1)
    # Summed in this order: a small term behind 1 - 1 is kept, one before it is lost.
    no = np.log((1 - sure) + sure * np.exp(apart * (nodes - apart / 2))).mean(axis=1)
    weight = sure[:, 0]
    bits: Floats = np.maximum(-(weight * yes + (1 - weight) * no) / log(2), 0.0)
    return bits


@cache
def _list_nodes() -> Floats:
    return np.array([NormalDist().inv_cdf((number + 0.5) / NODES) for number in range(NODES)])


def choose(belief: Belief, options: Iterable[Option]) -> tuple[Option, float] | None:
    """The option with the most bits per minute, and its bits; None where no option gives any."""
    gains: dict[int, Floats] = {}
    found: tuple[Option, float] | None = None
    rate = 0.0
    for option in options:
        if option.blocks not in gains:
            separation = sqrt(option.blocks) * standardise(belief.effect, belief.deviation)
            gains[option.blocks] = measure_information(belief.suspicions, separation)
        bits = float(gains[option.blocks][option.place - 1])
        if bits > FAINT and bits / max(option.minutes, FAINT) > rate:
            found, rate = (option, bits), bits / max(option.minutes, FAINT)
    return found


def list_credible(places: Sequence[float], share: float) -> tuple[int, ...]:
    """The fewest places, in their order, that together hold `share` of what all places hold."""
    left = share * fsum(places)
    chosen: list[int] = []
    for place in sorted(range(1, len(places) + 1), key=lambda place: -places[place - 1]):
        if left <= 0 and chosen:
            break
        chosen.append(place)
        left -= places[place - 1]
    return tuple(sorted(chosen))
