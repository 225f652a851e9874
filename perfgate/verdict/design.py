"""What to measure for a stated loss: windows per start, order, length and warm-up, by GPU-minutes.

Everything is estimated from stored sessions: variances of windows and starts, the offset of sessions, drift within a block, and
what starts, warm-up and windows took. A design is priced at all its blocks; a session that a look ends earlier costs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import expm1, log1p, sqrt
from operator import attrgetter
from statistics import fmean, median

from perfgate.core import Arm, Role, Window
from perfgate.errors import InputError
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.stats.power import POWER, MetricTest, find_power
from perfgate.verdict.noise import NoiseModel
from perfgate.verdict.policy import MAX_PRIOR_DF, StoredBlocks, build_prior, find_prior
from perfgate.verdict.power import BLOCK_CHOICES, REQUEST_CHOICES, WINDOW_CHOICES, Cost, SampleSize, Study
from perfgate.verdict.validity.pairing import summarise

SESSION_CHOICES = (4, 8, 16, 32)
"""How many stored sessions of equal arms are tried where those that there are do not suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDesign:
    """The cheapest design of so many `windows` a start; `size` is None where none of those tried finds the loss.

    `sessions` is how many stored sessions of equal arms it takes for granted.
    """

    windows: int
    sessions: int
    size: SampleSize | None = None
    minutes: float | None = None
    power: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignChoice:
    """The designs for one metric, by windows per start. `present` is the scenario's own, up to its last look."""

    metric: str
    plans: tuple[PricedDesign, ...]
    present: PricedDesign

    @property
    def best(self) -> PricedDesign | None:
        """The cheapest of all; None where none finds the loss."""
        found = [plan for plan in self.plans if plan.minutes is not None]
        return min(found, key=lambda plan: plan.minutes or 0.0) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Standard deviations of log values: between windows of a start, between starts, and of what favours an arm for a session.

    `offset` is what the stored sessions tell, `assumed` what the rule takes for it. `drift` is what a window in the next place
    of a block adds, with its standard error.
    """

    window: float
    start: float
    offset: float
    assumed: float
    sessions: int
    drift: float | None
    drift_error: float


def read_cost(sessions: Sequence[Session]) -> Cost:
    """What starts, warm-up and windows took in `sessions`. Raise InputError where no block follows another.

    First blocks are left out, for their servers compile what later ones find. `start_s` is half of what a block takes beside
    its windows: servers that start side by side share that time.
    """
    rest = [one for session in sessions for one in _measure_blocks(session)]
    if not rest:
        raise InputError("--from: no session has a second block, so nothing tells what a start takes; give a longer one")
    measured = [window for session in sessions for window in session.windows if window.role is not Role.WARMUP]
    return Cost(
        start_s=median(rest) / len(Arm),
        window_s=median(window.ended_s - window.begun_s for window in measured),
        warmups=round(fmean(_count_warmups(sessions))),
        gpus=max(session.gpus for session in sessions),
    )


def _measure_blocks(session: Session) -> Iterator[float]:
    """The seconds of each block but the first that no window took: from the last window of the one before to its own."""
    blocks = _group(session.windows)
    for before, block in pairwise(blocks):
        span_s = max(one.ended_s for one in block) - max(one.ended_s for one in before)
        yield span_s - sum(one.ended_s - one.begun_s for one in block)


def _group(windows: Iterable[Window]) -> list[list[Window]]:
    number = attrgetter("block")
    return [list(block) for _, block in groupby(sorted(windows, key=number), key=number)]


def _count_warmups(sessions: Iterable[Session]) -> list[int]:
    """How many windows each start but those of first blocks threw away."""
    counts: dict[tuple[int, int], int] = {}
    for number, session in enumerate(sessions):
        for window in session.windows:
            if window.block > 1:
                counts[number, window.start] = counts.get((number, window.start), 0) + (window.role is Role.WARMUP)
    return list(counts.values())


def measure_warmup(sessions: Sequence[Session], metric: str) -> tuple[float, ...]:
    """By how much the first, second, ... window after a start was worse than those that count, as ratios: the median start."""
    places: dict[int, list[float]] = {}
    for session in sessions:
        for block in _group(session.windows):
            for arm in Arm:
                mine = [one for one in block if one.arm is arm and metric in one.run.values]
                counted = [one for one in mine if one.role is not Role.WARMUP]
                for place, window in enumerate(one for one in mine if one.role is Role.WARMUP):
                    if counted and block[0].block > 1:
                        places.setdefault(place, []).append(summarise([window], metric) - summarise(counted, metric))
    return tuple(expm1(median(places[place])) for place in sorted(places))


def find_lag(windows: int) -> float:
    """How many places later than its leader an arm stands in a block on average: b c c b b c leaves a third of a window.

    An even number of windows per start leaves none, so that a linear drift cancels in each block; an odd one leaves it to the
    next block, which the other arm leads.
    """
    return 1 / windows if windows % 2 else 0.0


def measure_drift(noise: NoiseModel) -> tuple[float, float] | None:
    """What one more place in a block adds to log badness, and the standard error of that; None without pairs of arms.

    Arms take turns, base first in odd blocks. Each block has a level of its own and each arm of it another, so that what starts
    differ by counts for nothing.
    """
    badness = METRICS[noise.metric].badness
    crossed: list[float] = []
    squares = 0.0
    residuals: list[tuple[float, float]] = []
    for start, values in zip(noise.starts, noise.values, strict=True):
        places = _list_places(len(values), leads=(start.block % 2 == 1) == (start.arm is Arm.BASE))
        if not start.is_aa or len(values) < len(Arm):
            continue
        centre, level = fmean(places), fmean(map(badness, values))
        rows = [(place - centre, badness(value) - level) for place, value in zip(places, values, strict=True)]
        crossed += [along * found for along, found in rows]
        squares += sum(along**2 for along, _ in rows)
        residuals += rows
    if not squares:
        return None
    slope = sum(crossed) / squares
    starts = sum(1 for start, values in zip(noise.starts, noise.values, strict=True) if start.is_aa and len(values) > 1)
    left = len(residuals) - starts - 1
    if left <= 0:
        return None
    return slope, sqrt(sum((found - slope * along) ** 2 for along, found in residuals) / left / squares)


def _list_places(windows: int, *, leads: bool) -> list[int]:
    """Where the windows of an arm stand in the order of time: b c c b b c."""
    return [2 * turn + (turn % 2 if leads else 1 - turn % 2) for turn in range(windows)]


def describe_scatter(study: Study, metric: str) -> Scatter:
    """What is known of one metric's noise."""
    noise = study.baseline.metrics[metric]
    drift = measure_drift(noise) if study.scenario.blocks.resident == "both" else None
    return Scatter(
        window=sqrt(noise.components.window.variance),
        start=sqrt(noise.components.start.variance),
        offset=sqrt(noise.offset_variance),
        assumed=sqrt(find_prior(noise, MAX_PRIOR_DF).offset_variance),
        sessions=noise.aa_sessions,
        drift=drift[0] if drift else None,
        drift_error=drift[1] if drift else 0.0,
    )


def choose_designs(study: Study, effect: float, metric: str) -> DesignChoice:
    """Find the cheapest design for a loss of `effect`, a ratio, in `metric`, for each number of windows per start.

    Where the stored sessions of equal arms leave offsets too uncertain, it is the least number of them in
    SESSION_CHOICES that makes a design possible, if they show no more offset than those that there are.
    """
    stored = study.baseline.metrics[metric].aa_sessions
    plans: tuple[PricedDesign, ...] = ()
    for sessions in (stored, *(more for more in SESSION_CHOICES if more > stored)):
        plans = tuple(_find_cheapest(study, effect, metric, (windows, sessions)) for windows in WINDOW_CHOICES)
        if any(plan.size for plan in plans):
            break
    own = study.own_size
    power = find_power(_trial(study, metric, own, stored), log1p(effect))
    present = PricedDesign(windows=own.windows, sessions=stored, size=own, minutes=study.cost.minutes(own), power=power)
    return DesignChoice(metric=metric, plans=plans, present=present)


def _find_cheapest(study: Study, effect: float, metric: str, given: tuple[int, int]) -> PricedDesign:
    windows, sessions = given
    best = PricedDesign(windows=windows, sessions=sessions)
    for blocks in BLOCK_CHOICES:
        for requests in REQUEST_CHOICES:
            size = SampleSize(blocks=blocks, windows=windows, request_ratio=requests)
            minutes = study.cost.minutes(size)
            if best.minutes is not None and minutes >= best.minutes:
                continue
            power = find_power(_trial(study, metric, size, sessions), log1p(effect))
            if power >= POWER:
                best = replace(best, size=size, minutes=minutes, power=power)
    return best


def _trial(study: Study, metric: str, size: SampleSize, sessions: int) -> MetricTest:
    """The test of `metric` if `sessions` of equal arms were stored, with blocks enough for all that they may weigh."""
    trial, noise = study.trial(metric, size), study.baseline.metrics[metric]
    if sessions <= noise.aa_sessions:
        return trial
    stored = StoredBlocks(
        blocks=noise.blocks * sessions // max(noise.aa_sessions, 1),
        sessions=sessions,
        variance=noise.block_variance,
        offset_variance=noise.offset_variance,
    )
    prior = build_prior(stored, MAX_PRIOR_DF)
    return replace(trial, prior_df=prior.df, offset_sd=sqrt(prior.offset_variance), offset_df=prior.offset_df)


def describe_choices(choices: Iterable[DesignChoice]) -> list[Mapping[str, object]]:
    """Every design as plain values, for JSON."""
    return [
        {
            "metric": choice.metric,
            "present": _describe_plan(choice.present),
            "plans": [_describe_plan(plan) for plan in choice.plans],
        }
        for choice in choices
    ]


def _describe_plan(plan: PricedDesign) -> dict[str, object]:
    size = plan.size
    return {
        "windows": plan.windows,
        "aa_sessions": plan.sessions,
        "blocks": size.blocks if size else None,
        "request_ratio": size.request_ratio if size else None,
        "minutes": plan.minutes,
        "power": plan.power,
    }
