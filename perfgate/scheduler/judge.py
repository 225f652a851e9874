"""How the host work of two arms differs: pure. The same load runs in both, so window is held against window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from perfgate.resolution.values import Kind
from perfgate.scheduler.rules import RULES, CostRule
from perfgate.scheduler.values import CostComparison, CostDifference, CostGap, GapKind, HostWork

_ORDER = (Kind.LOST, Kind.ACCEPTED, Kind.CHANGED)
Runs = tuple[tuple[float, ...], ...]


def compare_work(base: HostWork, candidate: HostWork, accepted: Mapping[str, str]) -> CostComparison:
    """Compare what both arms did; `accepted` gives reasons by key."""
    differences, unverified = [], []
    for key, rule in RULES.items():
        if rule.is_timed:
            continue
        found = next(_list_gaps(key, rule, base, candidate), None)
        if found is not None:
            unverified.append(found)
            continue
        level, more = median(base.runs[key][0]), median(subtract(base.runs[key], candidate.runs[key]))
        if rule.is_lost(level, more):
            kind = Kind.ACCEPTED if key in accepted else Kind.LOST
            differences.append(CostDifference(key=key, kind=kind, base=level, more=more, reason=accepted.get(key)))
        elif abs(more) > rule.told_from * level:
            differences.append(CostDifference(key=key, kind=Kind.CHANGED, base=level, more=more))
    return CostComparison(
        base=base,
        candidate=candidate,
        differences=tuple(sorted(differences, key=lambda one: _ORDER.index(one.kind))),
        unverified=tuple(unverified),
    )


def subtract(base: Runs, candidate: Runs) -> list[float]:
    """How much more each window of the candidate has than the same window of the base."""
    return [
        after - before for one, other in zip(base, candidate, strict=True) for before, after in zip(one, other, strict=True)
    ]


def _list_gaps(key: str, rule: CostRule, base: HostWork, candidate: HostWork) -> Iterator[CostGap]:
    """Why nothing can be said of a key: it is missing, its windows are others, or they do not agree with each other."""
    for arm in (base, candidate):
        if not any(arm.runs.get(key, ())):
            yield CostGap(key=key, kind=GapKind.MISSING, arm=arm.name)
            return
        first, *others = arm.runs[key]
        if any(abs(one - other) > rule.scatter * one for run in others for one, other in zip(first, run, strict=False)):
            yield CostGap(key=key, kind=GapKind.UNSTEADY, arm=arm.name)
    if [len(run) for run in base.runs[key]] != [len(run) for run in candidate.runs[key]]:
        yield CostGap(key=key, kind=GapKind.OTHER_WINDOWS)
        return
    changes = subtract(base.runs[key], candidate.runs[key])
    level = median(base.runs[key][0])
    is_apart = rule.margin_ratio is not None and max(changes) - min(changes) > rule.scatter * level
    if is_apart and not all(rule.is_lost(level, change) for change in changes):
        yield CostGap(key=key, kind=GapKind.UNEVEN)
