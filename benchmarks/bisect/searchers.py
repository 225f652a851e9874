"""Ways to search a range: perfgate's, and plain `git bisect` driven by what people put into its script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log1p

from benchmarks.bisect.ranges import COMMITS, MARGIN, Noise, Range
from perfgate.bisection.search import CommitReading, Measured, Search, SearchRules, Step, plan_next
from perfgate.core import Outcome
from perfgate.stats.looks import LookPlan, Series, decide

PLAN = LookPlan(alpha=0.01, looks=(2, 3, 4, 6))
METRIC = "drawn"
BUDGET = 60
"""Blocks that perfgate's search may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How one search ended: the place that it names (None: it names none), the blocks, and the commits that were built."""

    named: int | None
    ending: str
    blocks: int
    builds: int


def search_by_posterior(noise: Noise, drawn: Range) -> Searched:
    """`perfgate bisect`, without the effects."""
    rules = SearchRules(plan=PLAN, budget=BUDGET * noise.minutes)
    state = Search(places=COMMITS, rules=rules, built=frozenset(range(COMMITS + 1)))
    while isinstance(step := plan_next(state), Step):
        reading = CommitReading(
            differences=drawn.measure(step.place, step.blocks),
            margin_log=log1p(MARGIN),
            prior_variance=drawn.prior.variance,
            prior_df=drawn.prior.df,
        )
        minutes = noise.minutes * step.blocks
        one = Measured(place=step.place, minutes=minutes, metrics={METRIC: reading})
        state = replace(state, measured=(*state.measured, one), minutes=state.minutes + minutes)
    blocks = sum(one.blocks for one in state.measured)
    places = {one.place for one in state.measured}
    return Searched(named=step.found, ending=step.ending.value, blocks=blocks, builds=1 + len(places))


def bisect_by(judge: Callable[[int], bool | None]) -> tuple[int | None, int]:
    """Plain git bisect between a good 0 and a bad last commit; `judge` says whether a place is bad, None to skip it.

    A place that is skipped gives way to the nearest one that was not, as with `git bisect skip`. Returns the place that it
    names, None when only skipped ones are left, and how many places it asked.
    """
    good, bad, skipped, asked = 0, COMMITS, set[int](), 0
    while True:
        middle = (good + bad) // 2
        left = sorted((place for place in range(good + 1, bad) if place not in skipped), key=lambda one: abs(one - middle))
        if not left:
            return (bad if bad - good == 1 else None), asked
        asked += 1
        is_bad = judge(left[0])
        if is_bad is None:
            skipped.add(left[0])
        elif is_bad:
            bad = left[0]
        else:
            good = left[0]


def search_by_threshold(threshold: float, blocks: int = 1) -> Callable[[Noise, Range], Searched]:
    """`git bisect run` with a script that measures `blocks` blocks and calls a commit bad beyond a fixed threshold."""

    def search(_: Noise, drawn: Range) -> Searched:
        def judge(place: int) -> bool:
            return sum(drawn.measure(place, blocks)) / blocks > log1p(threshold)

        named, asked = bisect_by(judge)
        return Searched(named=named, ending="named" if named else "skipped", blocks=asked * blocks, builds=asked + 1)

    return search


def search_by_verdict(_: Noise, drawn: Range) -> Searched:
    """`git bisect run` with `perfgate gate`: REGRESSION is bad, PASS and IMPROVED are good, INCONCLUSIVE is skipped."""
    spent = 0

    def judge(place: int) -> bool | None:
        nonlocal spent
        differences: tuple[float, ...] = ()
        for look in PLAN.looks:
            differences += drawn.measure(place, look - len(differences))
            outcome = decide([Series(differences=differences, margin_log=log1p(MARGIN), prior=drawn.prior)], PLAN).outcome
            if outcome is not Outcome.INCONCLUSIVE:
                break
        spent += len(differences)
        return None if outcome is Outcome.INCONCLUSIVE else outcome is Outcome.REGRESSION

    named, asked = bisect_by(judge)
    return Searched(named=named, ending="named" if named else "skipped", blocks=spent, builds=asked + 1)


SEARCHERS: dict[str, Callable[[Noise, Range], Searched]] = {
    "perfgate bisect": search_by_posterior,
    "git bisect, 1.5 % threshold": search_by_threshold(0.015),
    "git bisect, 5 % threshold": search_by_threshold(0.05),
    "git bisect, the gate's verdict": search_by_verdict,
}
