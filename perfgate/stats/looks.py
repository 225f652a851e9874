"""The rule on plain numbers: looks at block differences, in an order fixed before the first block.

This layer knows no windows, files or names, so that a simulator can ask it thousands of times a second.
`docs/explanation/statistics.md` derives it and says what it guarantees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfgate.core import Outcome, combine_outcomes
from perfgate.stats.moderated import Estimate, Prior, estimate


def reject(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Say for each p-value whether it is rejected; the family-wise error is at most `alpha`, whatever their dependence.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979): the smallest
    of n is held against alpha/n, the next against alpha/(n-1), and so on until one fails. Lowering a p-value never loses one.
    """
    rejected = [False] * len(p_values)
    for done, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > alpha / (len(p_values) - done):
            break
        rejected[index] = True
    return rejected


def find_levels(p_values: Sequence[float], alpha: float) -> list[float]:
    """The largest p-value at which `reject` would reject each, the others being what they are."""
    levels = []
    for index in range(len(p_values)):
        others = sorted(p_value for place, p_value in enumerate(p_values) if place != index)
        steps = (done for done, p_value in enumerate(others) if p_value > alpha / (len(p_values) - done))
        levels.append(alpha / (len(p_values) - next(steps, len(others))))
    return levels


CONFIDENCE = 0.95
"""Of each end of the interval that is shown."""

POWER = 0.90
NO_PRIOR = Prior()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPlan:
    """What is fixed before looking: the error budget `alpha` of one scenario and the block counts at which it may be spent."""

    alpha: float
    looks: tuple[int, ...]
    scenarios: int = 1

    @property
    def alpha_look(self) -> float:
        """The part of the budget that one look may spend (Bonferroni over looks and over the scenarios of a pull request)."""
        return self.alpha / len(self.looks) / self.scenarios

    @property
    def confidence_look(self) -> float:
        """The confidence of a bound at one look that makes CONFIDENCE over all planned looks together (Bonferroni)."""
        return 1 - (1 - CONFIDENCE) / len(self.looks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric: a log difference per block (candidate minus base, positive meaning worse) and its margin Delta, `margin_log`.

    `phi` holds the variance inflation after 1, 2, ... blocks; left out, it is 1 throughout. `usual` holds the variance that the
    scatter of windows alone would make of a difference, as those blocks tell it; left out, it is zero.
    """

    differences: tuple[float, ...]
    margin_log: float
    prior: Prior = NO_PRIOR
    phi: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()
    gating: bool = True

    def estimate(self, blocks: int) -> Estimate:
        """Estimate the difference from the first `blocks` blocks alone."""
        phi = self.phi[blocks - 1] if self.phi else 1.0
        usual = self.usual[blocks - 1] if self.usual else 0.0
        return estimate(self.differences[:blocks], self.prior, phi, usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFinding:
    """What one look says of one metric, on the log scale.

    `line` is the smallest estimate that this look calls a REGRESSION, `smallest` the effect that it finds with 90 % power.
    """

    outcome: Outcome
    estimate: Estimate
    line: float
    smallest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesDecision:
    """The decision of the rule: after how many blocks (`look`; 0 when none was reached), and of each series."""

    outcome: Outcome
    look: int
    findings: tuple[SeriesFinding, ...]


def decide(series: Sequence[Series], plan: LookPlan) -> SeriesDecision:
    """Replay the looks in order; the first that decides is the answer, whatever was measured after it."""
    blocks = min((len(one.differences) for one in series), default=0)
    decision = SeriesDecision(outcome=Outcome.INCONCLUSIVE, look=0, findings=())
    for look in (look for look in plan.looks if look <= blocks):
        found = judge_family(
            [one.estimate(look) for one in series],
            [one.margin_log for one in series],
            [one.gating for one in series],
            plan.alpha_look,
            plan.confidence_look,
        )
        findings = _require_lasting_gain(found, decision.findings)
        decision = SeriesDecision(outcome=_combine(series, findings), look=look, findings=findings)
        if decision.outcome is not Outcome.INCONCLUSIVE:
            break
    return decision


def judge_metric(
    found: Estimate, margin_log: float, *, is_worse: bool, is_better: bool, confidence: float = CONFIDENCE
) -> Outcome:
    """Judge one metric by its margin Delta on the log scale, `margin_log`, and by what Holm's test rejected.

    Half of Delta divides the line: beyond it nothing passes, within it nothing fails, so no third look can swap the two.
    """
    if found.mean > margin_log / 2:
        return Outcome.REGRESSION if is_worse else Outcome.INCONCLUSIVE
    if not found.mean + found.reach(confidence) < margin_log:
        return Outcome.INCONCLUSIVE
    return Outcome.IMPROVED if is_better and found.mean < -margin_log / 2 else Outcome.PASS


def judge_family(
    estimates: Sequence[Estimate],
    margins_log: Sequence[float],
    gating: Sequence[bool],
    alpha: float,
    confidence: float = CONFIDENCE,
) -> tuple[SeriesFinding, ...]:
    """Judge metrics that are looked at together: those that gate share the budget `alpha` by Holm's procedure.

    Each passes by a bound of `confidence`.
    """
    family = [index for index, is_gating in enumerate(gating) if is_gating]
    worse = _reject(family, [found.p_worse for found in estimates], alpha)
    better = _reject(family, [found.p_better for found in estimates], alpha)
    strictest = alpha / max(len(family), 1)
    levels = dict(zip(family, find_levels([estimates[index].p_worse for index in family], alpha), strict=True))
    return tuple(
        SeriesFinding(
            outcome=judge_metric(found, margin_log, is_worse=worse[index], is_better=better[index], confidence=confidence),
            estimate=found,
            line=find_line(found, margin_log, levels.get(index, strictest)),
            smallest=find_line(found, margin_log, strictest) + found.reach(POWER),
        )
        for index, (found, margin_log) in enumerate(zip(estimates, margins_log, strict=True))
    )


def _reject(family: list[int], p_values: list[float], alpha: float) -> list[bool]:
    """Holm over the gating metrics; one that only informs meets the strictest level and does not weigh on the others."""
    rejected = [p_value <= alpha / max(len(family), 1) for p_value in p_values]
    for index, is_rejected in zip(family, reject([p_values[index] for index in family], alpha), strict=True):
        rejected[index] = is_rejected
    return rejected


def find_line(found: Estimate, margin_log: float, alpha: float) -> float:
    """The smallest estimate with this noise that clears both the test and Delta / 2.

    An effect that lies by `found.reach(POWER)` beyond it is found nine times in ten (shifted t in place of the noncentral one).
    """
    return max(found.reach(1 - alpha), margin_log / 2)


def _combine(series: Sequence[Series], findings: Sequence[SeriesFinding]) -> Outcome:
    """One regression fails; all must pass to pass."""
    return combine_outcomes(finding.outcome for one, finding in zip(series, findings, strict=True) if one.gating)


def _require_lasting_gain(findings: tuple[SeriesFinding, ...], before: tuple[SeriesFinding, ...]) -> tuple[SeriesFinding, ...]:
    """A gain is shown only if every look so far saw it; else a slower candidate, by lasting longer, could look like a gain."""
    if not before:
        return findings
    return tuple(
        replace(now, outcome=Outcome.PASS) if now.outcome is Outcome.IMPROVED is not then.outcome else now
        for now, then in zip(findings, before, strict=True)
    )
