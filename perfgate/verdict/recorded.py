"""Sessions as a baseline stores them, one row for each fresh start, and how much slower new ones may be without a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log1p, sqrt
from statistics import fmean, median

from perfgate.core import Arm, Fingerprint, Window
from perfgate.errors import BaselineError
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.stats.moderated import find_quantile
from perfgate.storage.rounding import format_percent, round_number
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.differences import describe_difference, hardware_differences
from perfgate.verdict.noise import NoiseModel, StoredStart
from perfgate.verdict.validity.admission import admit
from perfgate.verdict.validity.pairing import group_starts, read_values
from perfgate.verdict.validity.structure import AdmissionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A measured session with what it does not know of itself: its name, when it began, which commit and environment it ran."""

    session: Session
    name: str
    at: str
    commit: str
    environment: str


Row = tuple[StoredStart, Mapping[str, tuple[float, ...]]]
"""A stored start and its window values by metric."""


def collect_rows(scenario: Scenario, fingerprint: Fingerprint, recorded: Iterable[Recorded], epoch: int) -> list[Row]:
    """Turn sessions into stored starts. Raise BaselineError for one that would not be admitted, or ran on other hardware."""
    rows = [row for one in recorded for row in _collect_session(scenario, fingerprint, one, epoch)]
    if not rows:
        raise BaselineError("no session holds a measured window of the base arm; measure with `perfgate calibrate`")
    return rows


def _collect_session(scenario: Scenario, fingerprint: Fingerprint, one: Recorded, epoch: int) -> list[Row]:
    session = one.session
    limits = AdmissionLimits(scenario=scenario, gated=tuple(scenario.gates))
    if problems := admit(session, limits):
        raise BaselineError(f"{one.name}: no evidence for a baseline: {problems[0]}")
    for arm, found in session.fingerprints.items():
        if differences := hardware_differences(found, fingerprint):
            raise BaselineError(
                f"{one.name}: {arm.value} ran on other hardware than the baseline ({describe_difference(differences[0])})"
            )
    return [
        (
            StoredStart(
                session=one.name,
                block=start.block,
                arm=start.arm,
                epoch=epoch,
                is_aa=session.is_aa,
                at=one.at,
                commit=one.commit,
                environment=one.environment,
            ),
            _read_values(start.pick_judged(limits.rules), scenario),
        )
        for start in group_starts(session)
        if len(start.measured) == scenario.blocks.windows and (session.is_aa or start.arm is Arm.BASE)
    ]


def _read_values(windows: Sequence[Window], scenario: Scenario) -> dict[str, tuple[float, ...]]:
    """Values of each metric that every window carries as a positive number, as they will be written."""
    names = [name for name, metric in METRICS.items() if name in scenario.gates or not (metric.is_by_name or metric.growth_of)]
    carried = [name for name in names if all(window.run.values.get(METRICS[name].of_window, 0.0) > 0 for window in windows)]
    found = {name: tuple(round_number(value) or 0.0 for value in read_values(windows, name)) for name in carried}
    return {name: values for name, values in found.items() if min(values) > 0}


MIN_SESSIONS = 10
"""From so many sessions on, the level of the past is known well enough to judge a single start by it."""


def find_slower(baseline: Baseline, scenario: Scenario, recorded: Sequence[Recorded]) -> dict[str, str]:
    """Name each gated metric whose new sessions are slower than the baseline, or its pinned anchor, allows; worst first.

    Against last time, the limit is Delta / 2 or the noise between sessions, whichever is larger (Delta while fewer than ten
    sessions tell that noise); against the anchor it is Delta / 2, so that many small steps cannot add up unseen.
    """
    found: list[tuple[float, str, str]] = []
    for name, level in _find_levels(baseline, scenario, recorded).items():
        noise, margin_log = baseline.metrics[name], log1p(scenario.margin_ratio(name))
        step, creep = level - noise.log_mean, level - noise.anchor.log_mean
        if step > _limit_step(noise, margin_log):
            found.append((step / margin_log, name, f"{name} is {format_percent(expm1(step))} worse than the stored level"))
        elif creep > margin_log / 2:
            since = f"{noise.anchor.release}, {noise.anchor.at}"
            found.append(
                (creep / margin_log, name, f"{name} crept to {format_percent(expm1(creep))} worse than its anchor ({since})")
            )
    return {name: message for _, name, message in sorted(found, reverse=True)}


def is_faster(baseline: Baseline, scenario: Scenario, recorded: Sequence[Recorded]) -> bool:
    """Whether a gated metric became better by more than would be called slower."""
    levels = _find_levels(baseline, scenario, recorded)
    return any(
        baseline.metrics[name].log_mean - level > _limit_step(baseline.metrics[name], log1p(scenario.margin_ratio(name)))
        for name, level in levels.items()
    )


def _find_levels(baseline: Baseline, scenario: Scenario, recorded: Sequence[Recorded]) -> dict[str, float]:
    rows = collect_rows(scenario, baseline.fingerprint, recorded, epoch=0)
    gated = [name for name, gate in scenario.gates.items() if not gate.advisory and name in baseline.metrics]
    levels = {}
    for name in gated:
        badness = METRICS[name].badness
        if found := [median(badness(value) for value in values[name]) for _, values in rows if name in values]:
            levels[name] = fmean(found)
    return levels


def _limit_step(noise: NoiseModel, margin_log: float) -> float:
    if noise.sessions < MIN_SESSIONS:
        return margin_log
    band = find_quantile(0.975, noise.sessions - 1) * sqrt(noise.predicted_variance)
    return max(margin_log / 2, band)
