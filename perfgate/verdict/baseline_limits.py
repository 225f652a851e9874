"""How much slower new sessions may be than a stored level before a person has to say why."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log1p, sqrt
from statistics import fmean, median

from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.stats.moderated import find_quantile
from perfgate.storage.rounding import format_percent
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import NoiseModel
from perfgate.verdict.recorded import Recorded, collect_rows

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
