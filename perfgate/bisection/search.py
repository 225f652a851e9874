"""Which commit made it slower: from what was measured so far to the next measurement, or to the answer.

Pure: a search is its own journal, so the same lines give the same next step after any interruption. First the gate's rule
says whether the last commit lost anything against the first; then `perfgate.bisection.posterior` says where, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum

from perfgate.bisection.posterior import Belief, Look, Option, choose, list_credible, weigh
from perfgate.core import Outcome
from perfgate.stats.looks import LookPlan, Series, SeriesDecision, decide
from perfgate.stats.moderated import Prior
from perfgate.verdict.policy import MAX_PRIOR_DF

GOOD = 0
"""The place of the commit that all others are compared with; the others follow, oldest first, as 1, 2, ..."""

BLOCK_CHOICES = (1, 2, 3)
MAX_VOIDS = 2
"""After so many untrusted measurements, and no trusted one, a commit is left out of the search."""

MISFIT = 0.01


class Ending(StrEnum):
    """How a search ends."""

    FOUND = "FOUND"
    NARROWED = "NARROWED"
    OUT_OF_BUDGET = "OUT_OF_BUDGET"
    NO_DIFFERENCE = "NO_DIFFERENCE"
    UNMEASURABLE = "UNMEASURABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReading:
    """One metric of one measurement: a log difference per block (positive meaning worse) and what it is judged by."""

    differences: tuple[float, ...]
    margin_log: float
    prior_variance: float = 0.0
    prior_df: float = 0.0
    gating: bool = True
    higher: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Blocks of one commit against GOOD, by metric, and the minutes that they took."""

    place: int
    minutes: float
    metrics: Mapping[str, CommitReading]

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return max((len(series.differences) for series in self.metrics.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """What is fixed before the first block; `budget` may be raised later.

    Its minutes, and all others of a search, are those of the clock times the `gpus` that a server takes, 1 on a CPU: a machine
    holds them while commits are built, too.
    `metric` is the one to search by, or empty for the one that lost most for certain. `aa_blocks` of GOOD against itself are
    measured where nothing is known of the noise. `block_minutes` is what a block is taken to cost before there was one.
    """

    plan: LookPlan
    budget: float
    metric: str = ""
    confidence: float = 0.95
    aa_blocks: int = 0
    block_minutes: float = 0.0
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """All that is known. `skipped` maps places to the reason; `voids` lists the places of measurements without a result.

    `build_minutes` are those that each build took; `built` are the places that need no build.
    """

    places: int
    rules: SearchRules
    measured: tuple[Measured, ...] = ()
    skipped: Mapping[int, str] = field(default_factory=dict)
    voids: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    built: frozenset[int] = frozenset()
    build_minutes: tuple[float, ...] = ()
    minutes: float = 0.0

    @property
    def last(self) -> int:
        """The place of BAD."""
        return self.places

    @property
    def closed(self) -> dict[int, str]:
        """The places that are not measured any more, with the reason."""
        tired = ((place, reasons) for place, reasons in self.voids.items() if len(reasons) >= MAX_VOIDS)
        return {**{place: f"no valid measurement: {reasons[-1]}" for place, reasons in tired}, **self.skipped}

    @property
    def gone_around(self) -> dict[int, str]:
        """Those of them that nothing is known of."""
        measured = {one.place for one in self.measured}
        return {place: reason for place, reason in self.closed.items() if place not in measured}

    def gather(self, metric: str, place: int) -> tuple[float, ...]:
        """All differences of one metric at one place, in the order in which they were measured."""
        found = (one.metrics[metric].differences for one in self.measured if one.place == place and metric in one.metrics)
        return tuple(difference for differences in found for difference in differences)

    def find_prior(self, metric: str) -> Prior:
        """What is known of the noise: stored blocks, or else blocks of GOOD against itself."""
        stored = next(one.metrics[metric] for one in self.measured if metric in one.metrics)
        if stored.prior_df:
            return Prior(variance=stored.prior_variance, df=stored.prior_df)
        return estimate_prior(self.gather(metric, GOOD))

    @property
    def block_minutes(self) -> float:
        """What a block costs."""
        done = sum(one.blocks for one in self.measured)
        return fsum(one.minutes for one in self.measured) / done if done else self.rules.block_minutes

    @property
    def make_minutes(self) -> float:
        """What a build costs."""
        return fsum(self.build_minutes) / len(self.build_minutes) if self.build_minutes else 0.0

    def price(self, place: int, blocks: int) -> float:
        """What so many blocks at a place cost, in minutes, a build included where one is missing."""
        return blocks * self.block_minutes + (0.0 if place in self.built else self.make_minutes)

    def affords(self, place: int, blocks: int) -> bool:
        """Whether the budget has room for it."""
        return self.minutes + self.price(place, blocks) <= self.rules.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to measure next: so many blocks of the commit at `place` against GOOD, expected to give so many bits."""

    place: int
    blocks: int
    bits: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How the search ends, with the evidence for it.

    `credible` are the fewest places that hold the confidence asked for; `found` is the place of the culprit, if there is one.
    `belief` and `metric` are absent where GOOD and BAD were never distinguished.
    """

    ending: Ending
    reason: str
    found: int | None = None
    credible: tuple[int, ...] = ()
    belief: Belief | None = None
    metric: str = ""
    warnings: tuple[str, ...] = ()


def plan_next(search: Search) -> Step | Answer:
    """Say what to measure next, or how the search ends."""
    if GOOD in search.closed:
        return _give_up(search, GOOD)
    known = sum(one.blocks for one in search.measured if one.place == GOOD)
    if known < search.rules.aa_blocks:
        return _if_affordable(search, Step(place=GOOD, blocks=1))
    decision, metrics = compare_ends(search)
    if decision.outcome is Outcome.INCONCLUSIVE and (look := _find_next_look(search)):
        return _if_affordable(search, Step(place=search.last, blocks=look))
    if decision.outcome not in {Outcome.REGRESSION, Outcome.INCONCLUSIVE}:
        is_faster = decision.outcome is Outcome.IMPROVED
        reason = "BAD is faster than GOOD" if is_faster else "BAD is not slower by as much as the margin"
        return Answer(ending=Ending.NO_DIFFERENCE, reason=f"{reason}: the gate's rule says {decision.outcome.value}")
    return _locate(search, pick_metric(decision, metrics))


def compare_ends(search: Search) -> tuple[SeriesDecision, tuple[str, ...]]:
    """Judge BAD against GOOD by the gate's rule; also name the metrics that it gates, in the order of its findings."""
    ends = [one for one in search.measured if one.place == search.last]
    if not ends:
        return SeriesDecision(outcome=Outcome.INCONCLUSIVE, look=0, findings=()), ()
    wanted = search.rules.metric
    metrics = tuple(name for name, reading in ends[0].metrics.items() if name == wanted or (reading.gating and not wanted))
    series = [
        Series(
            differences=search.gather(name, search.last),
            margin_log=ends[0].metrics[name].margin_log,
            prior=search.find_prior(name),
        )
        for name in metrics
    ]
    return decide(series, search.rules.plan), metrics


def pick_metric(decision: SeriesDecision, metrics: tuple[str, ...]) -> str:
    """Of the metrics that fail, or of all if none does, the one whose loss stands out most from its noise."""
    rates = {
        name: finding.estimate.mean / max(finding.estimate.standard_error, 1e-12)
        for name, finding in zip(metrics, decision.findings, strict=True)
        if finding.outcome is Outcome.REGRESSION or decision.outcome is not Outcome.REGRESSION
    }
    return max(rates, key=rates.__getitem__)


def estimate_prior(differences: tuple[float, ...]) -> Prior:
    """The noise that blocks of equal arms show, around the zero that their mean is."""
    if not differences:
        return Prior()
    variance = fsum(difference * difference for difference in differences) / len(differences)
    return Prior(variance=variance, df=min(len(differences), MAX_PRIOR_DF))


def believe(search: Search, metric: str) -> Belief:
    """Weigh every commit by all blocks of one metric."""
    places = range(1, search.places + 1)
    looks = [Look(place=place, differences=search.gather(metric, place)) for place in places]
    margin_log = next(one.metrics[metric].margin_log for one in search.measured if metric in one.metrics)
    return weigh(looks, search.places, search.find_prior(metric), margin_log / 2)


def _find_next_look(search: Search) -> int:
    """How many blocks of BAD are missing to the next look of the gate's rule; 0 after the last one."""
    done = sum(one.blocks for one in search.measured if one.place == search.last)
    return next((look - done for look in search.rules.plan.looks if look > done), 0)


def _if_affordable(search: Search, step: Step) -> Step | Answer:
    if step.place in search.closed:
        return _give_up(search, step.place)
    if search.affords(step.place, step.blocks):
        return step
    reason = "the budget is too small to decide whether BAD is slower than GOOD"
    return Answer(ending=Ending.OUT_OF_BUDGET, reason=reason)


def _give_up(search: Search, place: int) -> Answer:
    name = "BAD" if place else "GOOD"
    return Answer(ending=Ending.UNMEASURABLE, reason=f"{name} cannot be measured: {search.closed[place]}")


def _locate(search: Search, metric: str) -> Step | Answer:
    """GOOD and BAD differ: stop where one commit, or one run of commits with no measurable one between, is sure enough."""
    belief, sure = believe(search, metric), search.rules.confidence
    groups = list_groups(search)
    best = max(groups, key=lambda group: fsum(belief.places[place - 1] for place in group))
    weight = fsum(belief.places[place - 1] for place in best)
    if belief.none >= sure:
        return _end(Ending.NO_DIFFERENCE, search, metric, "later measurements show that BAD is not slower")
    if weight >= sure and len(best) == 1:
        return _end(Ending.FOUND, search, metric, "")
    if weight >= sure:
        reason = "one of these, and none of those between can be measured"
        return _end(Ending.NARROWED, search, metric, reason)
    found = choose(belief, _list_options(search))
    if found is not None:
        option, bits = found
        return Step(place=option.place, blocks=option.blocks, bits=bits)
    return _end(Ending.OUT_OF_BUDGET, search, metric, "the budget is too small for another useful measurement")


def list_groups(search: Search) -> list[tuple[int, ...]]:
    """Places that no measurement can tell apart, as those between were gone around: what git calls "any of these"."""
    gone, groups = search.gone_around, [[1]]
    for place in range(2, search.places + 1):
        if place - 1 in gone:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [tuple(group) for group in groups]


def _list_options(search: Search) -> Iterator[Option]:
    """What could be measured next, within the budget."""
    closed, block, make = search.closed, search.block_minutes, search.make_minutes
    left = search.rules.budget - search.minutes
    for place in range(1, search.places + 1):
        for blocks in BLOCK_CHOICES if place not in closed else ():
            minutes = blocks * block + (0.0 if place in search.built else make)
            if minutes <= left:
                yield Option(place=place, blocks=blocks, minutes=minutes)


def _end(ending: Ending, search: Search, metric: str, reason: str) -> Answer:
    belief = believe(search, metric)
    return Answer(
        ending=ending,
        reason=reason,
        found=max(range(1, search.places + 1), key=lambda place: belief.places[place - 1]) if ending is Ending.FOUND else None,
        credible=list_credible(belief.places, search.rules.confidence) if ending is not Ending.NO_DIFFERENCE else (),
        belief=belief,
        metric=metric,
        warnings=tuple(_list_warnings(search, belief)),
    )


def _list_warnings(search: Search, belief: Belief) -> Iterator[str]:
    if compare_ends(search)[0].outcome is Outcome.INCONCLUSIVE:
        yield f"after {search.rules.plan.looks[-1]} blocks the gate's rule has not decided whether BAD is slower than GOOD"
    if belief.misfit < MISFIT:
        yield "the blocks scatter more than one loss at one commit explains: there may be several culprits, or unusual noise"
