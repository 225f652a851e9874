"""What the blocks of a session tell of its machine: a level that moved, and starts that differ by more than they should.

Words beside a verdict, which decides without them: a level that both arms share cancels in their difference. Each kind is named
for one metric at most, the surest, where equal conditions would show it in one session of a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import expm1, inf, sqrt
from statistics import fmean

from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.stats import special
from perfgate.stats.components import Component, Components, measure_variance
from perfgate.storage.rounding import format_percent
from perfgate.verdict.policy import Design, Policy
from perfgate.verdict.series import MetricSeries, read_blocks
from perfgate.verdict.validity.pairing import measure_window_variance

MAX_P_VALUE = 0.01
"""The chance of each kind of false remark, over all gating metrics together."""

MIN_SHIFT_BLOCKS = 3
ROUNDING_VARIANCE = 1e-20
"""Of log values; a metric of a whole start, as its time to ready, has the same value in each window but for rounding."""
NOTHING = Component(variance=0.0, df=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Both arms moved together: from `block` on they were worse by `size` on the log scale. `p_value` is over all blocks."""

    block: int
    size: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrest:
    """Blocks differ `ratio` times as much, as standard deviations, as something else explains."""

    ratio: float
    p_value: float


def find_shift(base: Sequence[float], candidate: Sequence[float]) -> Shift | None:
    """Find the block from which the mean of both arms stands apart from before; None of fewer than MIN_SHIFT_BLOCKS.

    Starts that differ by chance scatter half as much in the mean of two arms as in their difference, which is what the means
    are held against: Student's t on the degrees of freedom of the differences, times the number of places to split at.
    """
    count = len(base)
    if count < MIN_SHIFT_BLOCKS:
        return None
    means = [(one + other) / 2 for one, other in zip(base, candidate, strict=True)]
    scatter = sqrt(measure_variance([other - one for one, other in zip(base, candidate, strict=True)])) / 2
    found = [_split(means, place, scatter) for place in range(1, count)]
    size, value, place = max(found, key=lambda split: split[1])
    p_value = 2 * float(special.stdtr(count - 1, -value)) * (count - 1) if value < inf else 0.0
    return Shift(block=place + 1, size=size, p_value=min(p_value, 1.0))


def _split(means: Sequence[float], place: int, scatter: float) -> tuple[float, float, int]:
    size = fmean(means[place:]) - fmean(means[:place])
    error = scatter * sqrt(1 / place + 1 / (len(means) - place))
    return size, abs(size) / error if error else (inf if size else 0.0), place


def compare_scatter(differences: Sequence[float], variance: float, df: float) -> Unrest | None:
    """Hold the scatter of differences against a `variance` known from `df` degrees of freedom: the variance ratio F."""
    if len(differences) < 2 or not variance or not df:
        return None
    ratio = measure_variance(differences) / variance
    return Unrest(ratio=sqrt(ratio), p_value=float(special.fdtrc(len(differences) - 1, df, ratio)))


def find_gap(levels: Sequence[float]) -> float | None:
    """How far apart two groups of levels stand; None unless there are two or more in each, closer than the groups."""
    ordered = sorted(levels)
    if len(ordered) < 4:
        return None
    place = max(range(2, len(ordered) - 1), key=lambda at: ordered[at] - ordered[at - 1])
    within = max(ordered[place - 1] - ordered[0], ordered[-1] - ordered[place])
    gap = ordered[place] - ordered[place - 1]
    return fmean(ordered[place:]) - fmean(ordered[:place]) if gap > within else None


def describe_states(session: Session, policy: Policy, readings: Sequence[MetricSeries], blocks: int) -> Iterator[str]:
    """Say what is out of the ordinary in the first `blocks` blocks of paired arms."""
    gating = [reading for reading in readings if reading.series.gating]
    if policy.design is not Design.PAIRED or not blocks or not gating:
        return
    max_p_value = MAX_P_VALUE / len(gating)
    yield from _tell_shift(gating, policy, blocks, max_p_value)
    yield from _tell_starts(gating, _explain_by_windows(session, policy, gating, blocks), blocks, max_p_value)
    yield from _tell_stored(gating, policy, blocks, max_p_value)


def _tell_shift(gating: Sequence[MetricSeries], policy: Policy, blocks: int, max_p_value: float) -> Iterator[str]:
    found = [(reading, find_shift(reading.base[:blocks], reading.candidate[:blocks])) for reading in gating]
    told = [
        (shift, reading.metric)
        for reading, shift in found
        if shift is not None and shift.p_value < max_p_value and abs(shift.size) > policy.margin_log(reading.metric) / 2
    ]
    if told:
        shift, metric = min(told, key=lambda one: one[0].p_value)
        row = METRICS[metric]
        change = format_percent(expm1(row.sign * shift.size), is_signed=True)
        yield f"level shift: from block {shift.block} on, {row.title} of both arms is {change} away from before; it cancels"


def _explain_by_windows(
    session: Session, policy: Policy, gating: Sequence[MetricSeries], blocks: int
) -> dict[str, tuple[float, int]]:
    """By metric, the variance that a block's difference has by its windows alone, and its degrees of freedom."""
    explained = {}
    paired = read_blocks(session, policy)[:blocks]
    for reading in gating:
        spreads = [
            spread
            for block in paired
            for windows in (block.base, block.candidate)
            if (spread := measure_window_variance(windows, reading.metric)) is not None
        ]
        if spreads and fmean(spreads) > ROUNDING_VARIANCE:
            count = policy.scenario.blocks.windows
            window = Component(variance=fmean(spreads), df=len(spreads) * (count - 1))
            alone = Components(window=window, start=NOTHING, session=NOTHING).predict_variance(count)
            explained[reading.metric] = (2 * alone, window.df)
    return explained


def _tell_starts(
    gating: Sequence[MetricSeries], explained: dict[str, tuple[float, int]], blocks: int, max_p_value: float
) -> Iterator[str]:
    found = [
        (unrest, reading)
        for reading in gating
        if reading.metric in explained
        and (unrest := compare_scatter(reading.series.differences[:blocks], *explained[reading.metric])) is not None
        and unrest.p_value < max_p_value
    ]
    if not found:
        return
    unrest, reading = min(found, key=lambda one: one[0].p_value)
    title, arms = METRICS[reading.metric].title, (reading.base[:blocks], reading.candidate[:blocks])
    gap = find_gap([level - fmean(arm) for arm in arms for level in arm])
    apart = "" if gap is None else f"; they stand in two states, {format_percent(expm1(gap))} apart"
    yield f"restless starts: {title} differs {unrest.ratio:.1f} times as much between starts as windows explain{apart}"


def _tell_stored(gating: Sequence[MetricSeries], policy: Policy, blocks: int, max_p_value: float) -> Iterator[str]:
    """Today's starts against the stored ones; what the windows scatter is held against theirs elsewhere (phi)."""
    found = []
    for reading in gating:
        noise = policy.noise.get(reading.metric)
        if noise is not None and noise.blocks:
            variance = policy.prior(reading.metric).variance
            unrest = compare_scatter(reading.series.differences[:blocks], variance, noise.blocks)
            if unrest is not None and unrest.p_value < max_p_value:
                found.append((unrest, METRICS[reading.metric].title))
    if found:
        unrest, title = min(found, key=lambda one: one[0].p_value)
        yield f"stored noise is of a quieter day: blocks of this session differ {unrest.ratio:.1f} times as much in {title}"
