"""What the rules that people use say of the same windows: the exhibits that they find, the twins that they call slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.museum.results import ExhibitResult, SideResult
from benchmarks.verdict.rivals import RIVALS, Evidence, Floats, Rival, score_nightly, score_sigmas
from perfgate.core import Better
from perfgate.metrics import METRICS

KEPT = 6
"""Earlier windows of unchanged code that a rule with a history needs at least: a block of each of two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRule:
    """A rule: whether it calls the candidate of some evidence slower. `needs_history` where it looks at earlier runs."""

    name: str
    alarms: Callable[[Evidence], bool]
    needs_history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCount:
    """What a rule said: of so many exhibits it found some, of so many twins it called some slower."""

    name: str
    found: int
    exhibits: int
    false: int
    twins: int


def _alarms_vllm(evidence: Evidence) -> bool:
    """VLLM's nightly rule: two standard deviations and one per cent from the mean of seven days, in any metric."""
    kept = Evidence(base=evidence.base, candidate=evidence.candidate, history=evidence.history[:, -7:], higher=evidence.higher)
    return bool(((score_sigmas(kept) >= 2) & (score_nightly(kept) >= 0.01)).any())


_NAMES = ("fixed 5 %", "fixed 10 %", "mean + 3 sd", "Welch t", "benchstat")


def _use(rival: Rival) -> UsedRule:
    return UsedRule(name=rival.name, alarms=lambda evidence: bool(rival.alarms(evidence)[0]), needs_history=rival.history > 0)


RULES: tuple[UsedRule, ...] = (
    *(_use(rival) for rival in RIVALS if rival.name in _NAMES),
    UsedRule(name="vLLM's nightly: 2 sd and 1 % of seven", alarms=_alarms_vllm, needs_history=True),
)


def count_alarms(results: Sequence[ExhibitResult]) -> tuple[RuleCount, ...]:
    """What each rule says of all sides that were run; a history is the base of the exhibit's other side."""
    sides = [(name, result) for result in results for name in ("broken", "fixed")]
    evidence = [(name, build_evidence(result, name)) for name, result in sides]
    return tuple(_count(rule, [(name, one) for name, one in evidence if one is not None]) for rule in RULES)


def _count(rule: UsedRule, evidence: Iterable[tuple[str, Evidence]]) -> RuleCount:
    usable = [(name, one) for name, one in evidence if not rule.needs_history or one.history.shape[1] >= KEPT]
    said = {name: [rule.alarms(one) for side, one in usable if side == name] for name in ("broken", "fixed")}
    return RuleCount(
        name=rule.name,
        found=sum(said["broken"]),
        exhibits=len(said["broken"]),
        false=sum(said["fixed"]),
        twins=len(said["fixed"]),
    )


def build_evidence(result: ExhibitResult, name: str) -> Evidence | None:
    """The windows of one side, and those of the other side's base as history; None where the side has none."""
    side, other = (result.broken, result.fixed) if name == "broken" else (result.fixed, result.broken)
    metrics = [] if side is None else [metric for metric, arms in side.windows.items() if all(map(len, arms.values()))]
    if side is None or not metrics:
        return None
    higher = np.array([METRICS[metric].better is Better.HIGHER for metric in metrics])
    base, candidate = (_stack(side, metrics, arm) for arm in ("base", "candidate"))
    history = _stack(other, metrics, "base") if other is not None and set(metrics) <= set(other.windows) else base[:, :0]
    return Evidence(base=base, candidate=candidate, history=history, higher=higher)


def _stack(side: SideResult, metrics: Sequence[str], arm: str) -> Floats:
    """The values as (1, windows, metrics), as many as every metric has."""
    columns = [[value for block in side.windows[metric][arm] for value in block] for metric in metrics]
    count = min(map(len, columns))
    return np.array([[column[:count] for column in columns]], dtype=np.float64).transpose(0, 2, 1)
