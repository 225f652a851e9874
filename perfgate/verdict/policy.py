"""What is fixed before the first look: which metrics gate, how far each may move, and what the stored noise is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import log1p

from perfgate.core import Arm, Fingerprint
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.stats.looks import CONFIDENCE, LookPlan
from perfgate.stats.moderated import Prior
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.differences import describe_difference, hardware_differences, host_differences, software_differences
from perfgate.verdict.noise import NoiseModel
from perfgate.verdict.recorded import MIN_SESSIONS
from perfgate.verdict.validity.structure import AdmissionLimits

RULE = "2026-11.12"
"""Version of the rule: any change that could change a verdict changes this. Counters are beside the rule."""

CALIBRATED_BLOCKS = 20
"""Fewer stored A/A blocks than this and a verdict is uncalibrated."""

MAX_PRIOR_DF = 9
"""Degrees of freedom that stored noise weighs at most; `benchmarks/verdict/cases.py` counts false alarms with it."""

MAX_PRIOR_DF_OTHER = 4
"""The same after the software or the host changed under the stored noise: other kernels and cores may scatter otherwise, so the
five degrees of freedom of a session's own six blocks outvote it."""

OTHER_HOST_RATIO = 4.0
"""How much larger a block's variance may be on a host with another CPU or another number of cores: blocks of equal arms had
twice the standard deviation on H200 hosts of 16 and 32 cores that they had with 64."""

SESSION_PRIOR_DF = 2
"""Degrees of freedom that the noise of one stored session weighs at most: its blocks share one day, and days differ."""

USUAL_OFFSET_LOG = 0.005
"""Standard deviation of what favours one of two equal arms for a whole session where nothing better is known. Sessions of equal
arms on H200 hosts of 16 to 64 cores had 0.5 to 0.7 % in throughput and mean latencies, and none that
showed in P99 ITL; `docs/error-rates.md` has it."""

USUAL_OFFSET_SESSIONS = 4
"""How many stored sessions USUAL_OFFSET_LOG weighs as much as."""

USUAL_RATIO = 2.0
"""Scatter within starts of up to so many times the stored variance is usual. The variance of three windows has two degrees of
freedom, so a median of a few doubles by chance alone; counting that as noise would widen the intervals of quiet sessions."""


class Design(IntEnum):
    """Which arms a session measures; the value is their number, and the `stage` of a verdict's JSON."""

    ALONE = 1
    PAIRED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rule as it applies to one session. `not_gating` maps each metric that is shown without gating to the reason.

    `window_noise` are the deviations of a window by metric that say which windows are measured again. `stored` is the machine
    of the baseline that lies there for it, whether its noise is used or not.
    """

    scenario: Scenario
    plan: LookPlan
    design: Design
    noise: Mapping[str, NoiseModel]
    window_noise: Mapping[str, float]
    is_same_software: bool
    is_same_host: bool
    metrics: tuple[str, ...]
    not_gating: Mapping[str, str]
    warnings: tuple[str, ...]
    checksum: str
    stored: Fingerprint | None = None

    @property
    def gated(self) -> tuple[str, ...]:
        """The metrics that may fail the change."""
        return tuple(metric for metric in self.metrics if metric not in self.not_gating)

    @property
    def max_prior_df(self) -> int:
        """How many degrees of freedom stored A/A blocks may be worth."""
        return MAX_PRIOR_DF if self.is_same_environment else MAX_PRIOR_DF_OTHER

    @property
    def is_same_environment(self) -> bool:
        """Whether stored noise was measured with this software on such a host."""
        return self.is_same_software and self.is_same_host

    @property
    def limits(self) -> AdmissionLimits:
        """What evidence must satisfy before it is judged."""
        return AdmissionLimits(scenario=self.scenario, gated=self.gated, noise=self.window_noise, stored=self.stored)

    @property
    def calibrated_blocks(self) -> int:
        """The fewest A/A blocks stored behind any gating metric."""
        return min((self.noise[name].blocks if name in self.noise else 0 for name in self.gated), default=0)

    def margin_log(self, metric: str) -> float:
        """Delta on the log scale."""
        return log1p(self.scenario.margin_ratio(metric))

    def prior(self, metric: str) -> Prior:
        """What stored noise contributes: s0^2 of A/A blocks for paired arms, one new start for a candidate alone."""
        noise = self.noise.get(metric)
        if self.design is Design.ALONE:
            return Prior() if noise is None else Prior(variance=noise.predicted_variance, df=noise.sessions - 1)
        return find_prior(noise, self.max_prior_df, is_same_host=self.is_same_host)

    def describe(self) -> dict[str, str | int | float]:
        """The rule in numbers, for the verdict."""
        return {
            **describe_plan(self.plan),
            "stage": int(self.design),
            "windows_per_start": self.scenario.blocks.windows,
            "max_prior_df": self.max_prior_df,
            "usual_offset_log": USUAL_OFFSET_LOG,
            "usual_ratio": USUAL_RATIO,
            "aa_blocks": self.calibrated_blocks,
            "baseline": self.checksum,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlocks:
    """What is stored of one metric's A/A blocks: how many, from how many sessions, s0^2 of a block and tau^2 of an offset."""

    blocks: int
    sessions: int
    variance: float
    offset_variance: float


NO_BLOCKS = StoredBlocks(blocks=0, sessions=0, variance=0.0, offset_variance=0.0)


def find_prior(noise: NoiseModel | None, max_df: int, *, is_same_host: bool = True) -> Prior:
    """What stored noise says of a paired difference; what is usual where none is stored."""
    if noise is None:
        return build_prior(NO_BLOCKS, max_df)
    stored = StoredBlocks(
        blocks=noise.blocks,
        sessions=noise.aa_sessions,
        variance=noise.block_variance,
        offset_variance=noise.offset_variance,
    )
    return build_prior(stored, max_df, is_same_host=is_same_host)


def build_prior(stored: StoredBlocks, max_df: int, *, is_same_host: bool = True) -> Prior:
    """A block's variance worth `max_df` degrees of freedom at most, and that of an offset of the whole session.

    tau^2 is the mean of the stored estimate and of the usual one, weighed by sessions, on the larger number of them as degrees
    of freedom; another host's sessions say nothing of this one's offsets.
    """
    sessions = stored.sessions if is_same_host else 0
    weighed = USUAL_OFFSET_SESSIONS * USUAL_OFFSET_LOG**2 + sessions * stored.offset_variance
    return Prior(
        variance=stored.variance * (1.0 if is_same_host else OTHER_HOST_RATIO),
        df=min(stored.blocks, max_df, SESSION_PRIOR_DF * stored.sessions),
        offset_variance=weighed / (USUAL_OFFSET_SESSIONS + sessions),
        offset_df=max(USUAL_OFFSET_SESSIONS, sessions),
    )


def describe_plan(plan: LookPlan) -> dict[str, str | int | float]:
    """The part of the rule in numbers that sessions and layers share."""
    return {
        "rule": RULE,
        "alpha": plan.alpha,
        "alpha_look": plan.alpha_look,
        "looks": ", ".join(map(str, plan.looks)),
        "scenarios_in_pr": plan.scenarios,
        "confidence": CONFIDENCE,
        "confidence_look": plan.confidence_look,
    }


def fix_policy(session: Session, scenario: Scenario, baseline: Baseline | None) -> Policy:
    """Fix the rule from what is known before the windows are read: scenario, fingerprints and stored noise."""
    has_base = Arm.BASE in session.fingerprints or any(window.arm is Arm.BASE for window in session.windows)
    design = Design.PAIRED if has_base else Design.ALONE
    fingerprint = session.fingerprints.get(Arm.BASE) or session.fingerprints.get(Arm.CANDIDATE)
    refusals, software, host = _compare(scenario, baseline, fingerprint)
    usable = baseline is not None and not refusals
    noise = dict(baseline.metrics) if baseline is not None and usable else {}
    deviations = {name: one.components.window.variance**0.5 for name, one in noise.items()}
    metrics = tuple(name for name, metric in METRICS.items() if name in scenario.gates or metric.headline)
    not_gating = {name: reason for name in metrics if (reason := explain_not_gating(name, scenario, noise.get(name)))}
    missing = [name for name in metrics if usable and name not in not_gating and name not in noise]
    return Policy(
        scenario=scenario,
        plan=LookPlan(
            alpha=scenario.alpha, looks=scenario.blocks.looks if has_base else (1,), scenarios=session.scenarios_in_pr
        ),
        design=design,
        noise=noise,
        window_noise=deviations if session.window_noise is None else session.window_noise,
        is_same_software=not software,
        is_same_host=not host,
        metrics=metrics,
        not_gating=not_gating,
        warnings=(
            *refusals,
            *(f"{change}: its noise weighs less" for change in (*software, *host)),
            *(f"{name} is not in the baseline: judged by this session's own noise" for name in missing),
        ),
        checksum=(baseline.checksum or "unsaved") if baseline is not None and usable else "none",
        stored=None if baseline is None else baseline.fingerprint,
    )


def _compare(
    scenario: Scenario, baseline: Baseline | None, fingerprint: Fingerprint | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Why the stored noise cannot be used at all, and what changed in the software beneath it and in the host."""
    if baseline is None or fingerprint is None:
        return ("no baseline for this hardware and scenario: judged by this session's own noise alone",), (), ()
    if refusals := find_refusals(scenario, baseline, fingerprint):
        return tuple(f"the baseline is not used: it was measured with {refusal}" for refusal in refusals), (), ()
    theirs = baseline.fingerprint
    software = tuple(
        f"software changed since the baseline ({describe_difference(one)})" for one in software_differences(fingerprint, theirs)
    )
    host = tuple(
        f"the baseline is of another host ({describe_difference(one)})" for one in host_differences(fingerprint, theirs)
    )
    return (), software, host


def find_refusals(scenario: Scenario, baseline: Baseline, fingerprint: Fingerprint) -> tuple[str, ...]:
    """With what else stored noise was measured, so that it says nothing of sessions of `scenario` on this machine."""
    refusals = []
    if baseline.workload_hash != scenario.workload_hash or baseline.scenario != scenario.name:
        refusals.append(f"another workload ({baseline.scenario} {baseline.workload_hash})")
    if (baseline.windows, baseline.resident) != (scenario.blocks.windows, scenario.blocks.resident):
        refusals.append(f"another design ({baseline.windows} windows per start, {baseline.resident} resident)")
    refusals += [
        f"other hardware ({describe_difference(difference)})"
        for difference in hardware_differences(fingerprint, baseline.fingerprint)
    ]
    return tuple(refusals)


def explain_not_gating(name: str, scenario: Scenario, noise: NoiseModel | None) -> str | None:
    """Say why a metric is shown without gating; None for one that gates."""
    metric, gate, load = METRICS[name], scenario.gates.get(name), scenario.load
    responds = noise.is_responsive if noise else None
    requests = load.num_prompts * scenario.blocks.windows
    too_few = requests < metric.min_requests and not responds
    pace = "a trace's times" if load.is_trace else f"{load.request_rate:g} requests/s"
    reasons = (
        (gate is None, "the scenario does not gate it"),
        (gate is not None and gate.advisory, "the scenario asks for that (advisory = true)"),
        (not metric.gates, "it never gates"),
        (
            metric.closed_loop_only and not load.is_closed_loop,
            f"at {pace} it echoes the load generator",
        ),
        (responds is False, "calibration saw no fitting response to an injected slow-down"),
        (
            too_few,
            f"{requests} requests per start are fewer than {metric.min_requests}, and no calibration shows a response",
        ),
    )
    return next((f"{metric.title} is shown only: {reason}" for is_so, reason in reasons if is_so), None)


def can_judge_alone(policy: Policy) -> bool:
    """Whether stored sessions are enough to judge a candidate that was measured without a base."""
    return all(name in policy.noise and policy.noise[name].sessions >= MIN_SESSIONS for name in policy.gated)
