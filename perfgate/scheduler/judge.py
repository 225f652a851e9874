"""What host work is held against what, which growth is a loss, and how two arms differ: pure.

The same load runs in both arms, so window is compared with window. A key without a limit is reported and never fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from perfgate.resolution.values import Kind
from perfgate.results.profiling.host_counts import SAME_RATIO
from perfgate.scheduler.values import CostComparison, CostDifference, CostGap, GapKind, HostWork

MARGIN_RATIO = 0.02
"""The share by which instructions may grow, and steps: each is a forward pass."""

SCATTER = 0.01
"""How far apart the changes of single windows may be, as a share of a base's window: further apart they did not repeat."""

ONCE_IN_TWO = 0.5
"""How many more of an event a step or a request are a loss: one in two steps, so that a line each forty steps is none."""

PARTS = {"scheduler": "scheduler", "detokenizer": "detokenizer", "tokenizer_manager": "tokenizer manager"}
UNITS = {"decode_step": "a decode step", "request": "a request"}

Runs = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """What a key means, and how much more of it is a loss: `margin_ratio` as a share of the base, `more` as a number a unit.

    Below `told_from`, a share, a difference is not worth a line. `scatter`, a share, is how far runs of one arm, or the changes
    of single windows, may be apart. A `timed` key is shown beside the others: no evidence by itself.
    """

    means: str
    margin_ratio: float | None = None
    more: float | None = None
    told_from: float = 0.0
    scatter: float = 0.0
    is_timed: bool = False

    def is_lost(self, base: float, more: float) -> bool:
        """Whether so much more than the base has is a loss."""
        is_beyond = self.margin_ratio is not None and more > base * self.margin_ratio
        return is_beyond or (self.more is not None and more >= self.more)


_METERED = {
    "instructions": CostRule(means="instructions", margin_ratio=MARGIN_RATIO, told_from=SAME_RATIO, scatter=SCATTER),
    "cpu_us": CostRule(means="us of CPU time", is_timed=True),
    "operators": CostRule(means="operators of torch", more=ONCE_IN_TWO),
    "host_reads": CostRule(means="reads and waits that stop for a device", more=ONCE_IN_TWO),
    "copies": CostRule(means="copies of tensors", more=ONCE_IN_TWO),
    "allocations": CostRule(means="tensors made from nothing", more=ONCE_IN_TWO),
    "log_records": CostRule(means="log records", more=ONCE_IN_TWO),
}


def _list_rules() -> Iterator[tuple[str, CostRule]]:
    for part in PARTS:
        for unit in UNITS:
            yield from ((f"{part}.{unit}.{name}", rule) for name, rule in _METERED.items())
    yield from ((f"channels.{unit}.bytes", CostRule(means="bytes between the parts", told_from=0.01)) for unit in UNITS)
    for unit, words in (("round", "a round of requests"), ("queue", "a queue of requests")):
        yield f"scheduler.{unit}.steps", CostRule(means=f"steps of {words}", margin_ratio=MARGIN_RATIO, scatter=SCATTER)


RULES: Mapping[str, CostRule] = dict(_list_rules())
"""By key: the part, the unit that it is counted for, and what was metered."""


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
        differences=tuple(sorted(differences, key=lambda one: one.kind.order)),
        unverified=tuple(unverified),
    )


def subtract(base: Runs, candidate: Runs) -> list[float]:
    """How much more each window of the candidate has than the same window of the base."""
    return [
        after - before for one, other in zip(base, candidate, strict=True) for before, after in zip(one, other, strict=True)
    ]


def _list_gaps(key: str, rule: CostRule, base: HostWork, candidate: HostWork) -> Iterator[CostGap]:
    """Why a key cannot be compared: it is missing, the windows differ in number, or they do not agree with each other."""
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
