"""What the kept runs of two arms say of each metric: what may gate, what can be compared, and the rule that decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, expm1, fsum, inf, log1p

from perfgate.core import Arm, Judgement, Outcome, Run
from perfgate.errors import InputError
from perfgate.metrics import METRICS, Metric
from perfgate.stats import welch
from perfgate.stats.looks import SeriesFinding, judge_family
from perfgate.stats.moderated import Estimate, Prior
from perfgate.verdict.conclusion import add_estimate
from perfgate.verdict.runs.workloads import ColdRun, Facts

MIN_RUNS = 3
# A finite rate says how fast requests are sent; only a server that answers at half of it or less sets the pace itself.
SATURATED_RATIO = 0.5
# A smallest effect beyond ten times says only that nothing could have been found.
MAX_EFFECT = 10.0
AS_PRINTED = "the load generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is fixed before looking. `metrics` empty means every metric that the runs carry.

    `priors` come from a baseline, and `caveats` say what is to be known of it.
    """

    alpha: float = 0.01
    metrics: tuple[str, ...] = ()
    margin_ratios: Mapping[str, float] = field(default_factory=dict)
    priors: Mapping[str, Prior] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()

    def margin_ratio(self, metric: str) -> float:
        """The practical margin Delta of `metric`: the caller's, else the metric's own."""
        return self.margin_ratios.get(metric, METRICS[metric].margin_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRuns:
    """One arm's runs of one workload: those that are compared and those that were cold."""

    kept: tuple[Run, ...]
    cold: tuple[ColdRun, ...] = ()


def judge_metrics(workload: Facts, arms: Mapping[Arm, ArmRuns], rule: Rule) -> list[tuple[Judgement, int | None]]:
    """Judge every metric, and say how many further runs an arm would settle it.

    The gating ones are tested together: Holm's procedure holds the chance of any false alarm among them at the rule's alpha.
    """
    chosen = _choose_metrics(arms, rule)
    advisories = {name: _find_advisory(METRICS[name], workload, arms, rule) for name in chosen}
    defects = {name: _find_defect(name, arms) for name in chosen}
    values = {name: _read_values(name, arms) for name in chosen if not defects[name]}
    estimates = {name: _estimate(name, *values[name], rule) for name in values}
    margins = {name: log1p(rule.margin_ratio(name)) for name in estimates}
    gating = [not advisories[name] for name in estimates]
    findings = dict(
        zip(estimates, judge_family(list(estimates.values()), list(margins.values()), gating, rule.alpha), strict=True)
    )
    level = rule.alpha / max(sum(gating), 1)
    is_enough = min(len(runs.kept) for runs in arms.values()) >= MIN_RUNS
    judged: list[tuple[Judgement, int | None]] = []
    for name in chosen:
        blank = _blank(name, rule, advisories[name], defects[name])
        if name not in findings:
            judged.append((blank, None))
            continue
        filled = _fill(blank, values[name], findings[name])
        outcome = findings[name].outcome if is_enough else Outcome.INCONCLUSIVE
        judged.append((replace(filled, outcome=outcome), _plan(name, values[name], rule, level, estimates[name].mean)))
    return judged


def _choose_metrics(arms: Mapping[Arm, ArmRuns], rule: Rule) -> list[str]:
    """Return the wanted metrics, else every one that some run carries, that can gate at all and need not be asked for."""
    carried = {arm: {name for run in runs.kept for name in run.values} for arm, runs in arms.items()}
    for name in rule.metrics:
        for arm, names in carried.items():
            if name not in names:
                raise InputError(f"--metric {name}: no run of {arm} carries it; measure with --output-details, or leave it out")
    anywhere = set().union(*carried.values())
    usual = [name for name, row in METRICS.items() if row.gates and not row.is_by_name and name in anywhere]
    return [name for name in METRICS if name in rule.metrics] if rule.metrics else usual


def _find_advisory(row: Metric, workload: Facts, arms: Mapping[Arm, ArmRuns], rule: Rule) -> str | None:
    """Say why a metric may not gate, None when it may."""
    runs = [run for arm in arms.values() for run in arm.kept]
    requests = min(run.completed for run in runs)
    if not row.gates and row.name not in rule.metrics:
        return "never gates unless named by --metric"
    if requests < row.min_requests:
        return f"{requests} requests per run are too few for its tail; it gates from {row.min_requests}"
    rate = workload.get("request_rate", "inf")
    if row.closed_loop_only and rate != "inf":
        pace = max(run.values.get("request_per_s", 0.0) for run in runs)
        if not isinstance(rate, (int, float)) or pace > SATURATED_RATIO * rate:
            return f"at a request rate of {rate} it echoes the load generator; measure it at rate inf"
    for arm, members in arms.items():
        if not any(row.name in run.values for run in members.kept):
            return f"absent in {arm}; measure both arms with one version of the load generator, and --output-details"
    return None


def _find_defect(name: str, arms: Mapping[Arm, ArmRuns]) -> str | None:
    """Say why the values of a metric cannot be compared, None when they can."""
    runs = [run for arm in arms.values() for run in arm.kept]
    missing = [run.source for run in runs if name not in run.values]
    if missing:
        return f"absent in {len(missing)} of {len(runs)} runs, first {missing[0]}"
    made = {run.estimators.get(name, AS_PRINTED): run.source for run in runs}
    if len(made) > 1:
        return "made in different ways: " + ", ".join(f"by {how} in {source}" for how, source in sorted(made.items()))
    return None


def _read_values(name: str, arms: Mapping[Arm, ArmRuns]) -> tuple[list[float], list[float]]:
    """The log badness of every kept run of base and candidate."""
    badness = METRICS[name].badness
    base, candidate = ([badness(run.values[name]) for run in arms[arm].kept] for arm in (Arm.BASE, Arm.CANDIDATE))
    return base, candidate


def _estimate(name: str, base: list[float], candidate: list[float], rule: Rule) -> Estimate:
    prior = rule.priors.get(name)
    if prior is None:
        return welch.compare_arms(base, candidate)
    return welch.compare_with_prior(base, candidate, prior)


def _blank(name: str, rule: Rule, advisory: str | None, defect: str | None) -> Judgement:
    return Judgement(
        metric=name,
        outcome=Outcome.INVALID,
        gating=advisory is None,
        margin_ratio=rule.margin_ratio(name),
        notes=tuple(note for note in (advisory, defect) if note),
    )


def _fill(blank: Judgement, values: tuple[list[float], list[float]], finding: SeriesFinding) -> Judgement:
    """Translate from the log scale, where larger is worse, to the metric's own sense."""
    sign, found = METRICS[blank.metric].sign, finding.estimate
    base, candidate = (exp(sign * fsum(arm) / len(arm)) for arm in values)
    return replace(
        # A few runs may scatter without bound, and then their interval says so.
        add_estimate(blank, found, sign=sign, widest=inf),
        base=base,
        candidate=candidate,
        p_value=found.p_worse,
        fails_from=expm1(finding.line) if finding.line < log1p(MAX_EFFECT) else None,
        smallest_effect=expm1(finding.smallest) if finding.smallest < log1p(MAX_EFFECT) else None,
    )


def _plan(name: str, values: tuple[list[float], list[float]], rule: Rule, level: float, seen: float) -> int | None:
    """How many further runs an arm, or further starts where the spread of starts is known, would settle this metric.

    `seen` is the loss that these runs show. One beyond half the margin is planned for as it is: should it be true, so many find
    it. What lies within passes, which takes the room that is left to the margin.
    """
    margin_log = log1p(rule.margin_ratio(name))
    aim = min(seen, margin_log) if seen > margin_log / 2 else min(margin_log - seen, margin_log)
    prior = rule.priors.get(name)
    if prior is not None:
        blocks = welch.plan_blocks(prior, aim, level)
        return None if blocks is None else max(blocks - 1, 1)
    spread = welch.bound_spread(*welch.pool_spread(*values))
    runs = welch.plan_runs(spread, aim, level, MIN_RUNS)
    return None if runs is None else max(runs - min(map(len, values)), 1)
