"""What stored windows of one metric say about its noise; everything here is derived from raw values, whenever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import expm1, fsum, sqrt
from statistics import fmean, median, quantiles

from perfgate.core import Arm
from perfgate.metrics import METRICS
from perfgate.stats.components import Components, find_offset_variance, measure_variance, split_variance
from perfgate.stats.moderated import find_quantile, guard_variance

MIN_RESPONSE, MAX_RESPONSE = 0.5, 2.0
"""A metric responds when it shows between these shares of an injected slow-down, with an interval that excludes zero: what
shows many times of it shows something else that happened meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStart:
    """One server start of the past: where and when its windows were measured.

    `epoch` counts accepted changes of level; only starts of the newest describe the level of today. `is_aa` says that the other
    arm of its block ran the same build.
    """

    session: str
    block: int
    arm: Arm
    epoch: int
    is_aa: bool
    at: str
    commit: str
    environment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The level of a release, pinned: slow creep is measured against it, never against last week."""

    log_mean: float
    at: str
    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How a metric answered an injected slow-down, all as ratios; `low` and `high` bound `measured_ratio` (90 %)."""

    injected_ratio: float
    measured_ratio: float
    low: float
    high: float


# No slots: what is derived is remembered in the instance.
@dataclass(frozen=True, kw_only=True)
class NoiseModel:
    """The stored past of one metric. `values` holds the windows of each of `starts` in the metric's unit; absent: empty."""

    metric: str
    starts: tuple[StoredStart, ...]
    values: tuple[tuple[float, ...], ...]
    anchor: Anchor
    sensitivity: tuple[Response, ...] = ()

    @cached_property
    def log_mean(self) -> float:
        """Mean over sessions of today's level, as log badness."""
        return fmean(fmean(median(start) for start in session) for session in self._sessions)

    @cached_property
    def sessions(self) -> int:
        """How many sessions define today's level."""
        return len(self._sessions)

    @cached_property
    def components(self) -> Components:
        """Variances of log values between windows, starts and sessions."""
        return split_variance(self._sessions)

    @cached_property
    def differences(self) -> tuple[float, ...]:
        """Candidate minus base of each stored A/A block, in log badness."""
        return tuple(difference for _, difference in self._blocks)

    @cached_property
    def _blocks(self) -> list[tuple[str, float]]:
        """The session and the difference of each stored A/A block."""
        found: dict[tuple[str, int], dict[Arm, float]] = {}
        for start, values in zip(self.starts, self._badness, strict=True):
            if start.is_aa and values:
                found.setdefault((start.session, start.block), {})[start.arm] = median(values)
        return [
            (session, pair[Arm.CANDIDATE] - pair[Arm.BASE]) for (session, _), pair in found.items() if len(pair) == len(Arm)
        ]

    @property
    def blocks(self) -> int:
        """How many A/A blocks are stored: H."""
        return len(self.differences)

    @property
    def aa_sessions(self) -> int:
        """How many sessions the stored A/A blocks come from."""
        return len({session for session, _ in self._blocks})

    @cached_property
    def offset_variance(self) -> float:
        """Variance tau^2 of what favoured one of two equal arms for a whole session, as the stored blocks tell it."""
        sessions: dict[str, list[float]] = {}
        for session, difference in self._blocks:
            sessions.setdefault(session, []).append(difference)
        return find_offset_variance(list(sessions.values()))

    @cached_property
    def block_variance(self) -> float:
        """Variance s0^2 of an A/A block's difference around the zero that it should be."""
        if not self.blocks:
            return 0.0
        observed = fsum(value * value for value in self.differences) / self.blocks
        return guard_variance(observed, self.blocks, 2 * self.spread / self.windows)

    @cached_property
    def spread(self) -> float:
        """The usual variance within a start: the median over starts, so that a stall does not count as usual."""
        found = [measure_variance(values) for values in self._badness if len(values) > 1]
        return median(found) if found else 0.0

    @property
    def windows(self) -> int:
        """Windows per start, as measured."""
        return max((len(values) for values in self.values), default=0)

    @cached_property
    def predicted_variance(self) -> float:
        """Variance of one new start in one new session around `log_mean`, itself only an estimate."""
        return self.components.predict_variance(self.windows) * (1 + 1 / self.sessions)

    @cached_property
    def band(self) -> float | None:
        """Noise band as a positive ratio: 95 % of comparisons of a single block stay within it when nothing changed."""
        if not self.blocks:
            return None
        return expm1(find_quantile(0.975, self.blocks) * sqrt(self.block_variance))

    @cached_property
    def session_band(self) -> float | None:
        """Noise band of a candidate measured alone: 95 % of single starts in a new session stay within it around the level."""
        if self.sessions < 2:
            return None
        return expm1(find_quantile(0.975, self.sessions - 1) * sqrt(self.predicted_variance))

    @cached_property
    def quantiles(self) -> tuple[float, float, float]:
        """The 5th, 50th and 95th percentile of start medians, in the metric's unit."""
        middles = [median(values) for values in self.values if values]
        if len(middles) == 1:
            return (middles[0],) * 3
        cuts = quantiles(middles, n=20, method="inclusive")
        return cuts[0], cuts[9], cuts[18]

    @property
    def is_responsive(self) -> bool | None:
        """Whether calibration saw the metric answer a slow-down, by about as much; None when that was not measured."""
        if not self.sensitivity:
            return None
        return any(
            row.low > 0 and MIN_RESPONSE <= row.measured_ratio / row.injected_ratio <= MAX_RESPONSE for row in self.sensitivity
        )

    @cached_property
    def _badness(self) -> tuple[tuple[float, ...], ...]:
        badness = METRICS[self.metric].badness
        return tuple(tuple(badness(value) for value in values) for values in self.values)

    @cached_property
    def _sessions(self) -> Sequence[Sequence[Sequence[float]]]:
        newest = max(start.epoch for start in self.starts)
        rows = [
            (start.session, values) for start, values in zip(self.starts, self._badness, strict=True) if start.epoch == newest
        ]
        grouped = groupby(sorted((row for row in rows if row[1]), key=lambda row: row[0]), key=lambda row: row[0])
        return [[values for _, values in group] for _, group in grouped]
