"""From admitted windows to the plain numbers that the rule is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from perfgate.evidence import Session
from perfgate.stats.looks import Series
from perfgate.verdict.policy import USUAL_RATIO, Design, Policy
from perfgate.verdict.validity.pairing import (
    DECIMALS,
    Block,
    group_starts,
    list_lone_blocks,
    measure_window_variance,
    pair_blocks,
    summarise,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """One metric of a session: log badness of each arm per block, and the series of their differences."""

    metric: str
    base: tuple[float, ...]
    candidate: tuple[float, ...]
    series: Series

    def average(self, blocks: int) -> tuple[float, float]:
        """Mean log badness of base and candidate over the first `blocks` blocks."""
        return fmean(self.base[:blocks]), fmean(self.candidate[:blocks])


def read_blocks(session: Session, policy: Policy) -> tuple[Block, ...]:
    """Return the whole blocks of a session: of both arms where they are paired, else of the candidate alone."""
    pair = pair_blocks if policy.design is Design.PAIRED else list_lone_blocks
    return pair(group_starts(session), policy.scenario.blocks.windows, policy.limits.rules)


def read_series(session: Session, policy: Policy) -> tuple[MetricSeries, ...]:
    """Read every metric that all judged windows carry, in the order in which they are shown; empty without a whole block."""
    blocks = read_blocks(session, policy)
    return tuple(
        _read(metric, blocks, policy)
        for metric in policy.metrics
        if blocks
        and all(block.carries(metric) for block in blocks)
        and (policy.design is Design.PAIRED or metric in policy.noise)
    )


def _read(metric: str, blocks: tuple[Block, ...], policy: Policy) -> MetricSeries:
    candidate = tuple(summarise(block.candidate, metric) for block in blocks)
    if policy.design is Design.PAIRED:
        base = tuple(summarise(block.base, metric) for block in blocks)
    else:
        base = (policy.noise[metric].log_mean,) * len(blocks)
    spreads = _find_spreads(metric, blocks)
    series = Series(
        differences=tuple(round(after - before, DECIMALS) for before, after in zip(base, candidate, strict=True)),
        margin_log=policy.margin_log(metric),
        prior=policy.prior(metric),
        phi=_inflate(spreads, policy.noise[metric].spread if metric in policy.noise else 0.0),
        usual=tuple(2 * spread / policy.scenario.blocks.windows for spread in spreads),
        gating=metric not in policy.not_gating,
    )
    return MetricSeries(metric=metric, base=base, candidate=candidate, series=series)


def _find_spreads(metric: str, blocks: tuple[Block, ...]) -> tuple[float, ...]:
    """The median variance within a start after 1, 2, ... blocks, which one stall does not move; zero where none is known."""
    spreads: list[float] = []
    medians = []
    for block in blocks:
        found = (measure_window_variance(windows, metric) for windows in (block.base, block.candidate) if len(windows) > 1)
        spreads.extend(spread for spread in found if spread is not None)
        medians.append(median(spreads) if spreads else 0.0)
    return tuple(medians)


def _inflate(spreads: tuple[float, ...], usual: float) -> tuple[float, ...]:
    """How much noisier than usual starts are, as ratios of variances, at least 1; usual is up to USUAL_RATIO times `usual`."""
    return tuple(max(1.0, spread / (USUAL_RATIO * usual)) for spread in spreads) if usual else ()
