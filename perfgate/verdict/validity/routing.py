"""Does each arm route as a mixture of experts does, and both of them alike? Else a session says nothing of a MoE kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from perfgate.core import Arm, Role, Window
from perfgate.errors import CANNOT_MEASURE
from perfgate.stats.expert_use import NOT_MEASURED, ExpertUse, Fault, FaultKind, find_faults
from perfgate.storage.rounding import format_percent


def check_use(uses: Mapping[Arm, ExpertUse]) -> Iterator[str]:
    """Say what makes a session no evidence on a MoE kernel: a router in name only, or arms that route differently."""
    base = uses.get(Arm.BASE)
    for arm, use in sorted(uses.items()):
        for fault in find_faults(use, base if arm is Arm.CANDIDATE else None):
            yield describe_fault(fault, use, f"as the {arm.value} serves it")


def check_asked(windows: Iterable[Window], uses: Mapping[Arm, ExpertUse]) -> Iterator[str]:
    """Name the arms whose windows count and whose expert use, which was measured before them, is not there."""
    measured = {window.arm for window in windows if window.role is Role.MEASURED}
    if lost := [arm.value for arm in Arm if arm in measured and uses.get(arm, NOT_MEASURED) == NOT_MEASURED]:
        yield (
            f"{' and '.join(lost)}: expert use was measured, and expert_use.jsonl does not tell it: the folder was changed "
            "after the run; measure again"
        )


def describe_fault(fault: Fault, use: ExpertUse, who: str) -> str:
    """Say one fault; `who` completes "this model cannot measure a MoE kernel: ..."."""
    worst = fault.worst
    others = f" and {fault.layers - 1} more" if fault.layers > 1 else ""
    where = f"in layer {worst.layer}{others}"
    if fault.kind is FaultKind.FEW:
        return (
            f"{CANNOT_MEASURE}: {who}, a decode step of {use.tokens_a_step} tokens touches {worst.distinct_a_step:.1f} of "
            f"{worst.experts} experts {where}, where uniform routing touches {worst.uniform_a_step:.1f} and at least half of "
            "that is asked for; serve weights whose router looks at the token"
        )
    if fault.kind is FaultKind.BLIND:
        return (
            f"{CANNOT_MEASURE}: {who}, the experts of a token do not depend on the token {where} (dependence "
            f"{worst.dependence:.2f}, {fault.allowed:g} is asked for); serve weights whose router looks at the token"
        )
    if fault.kind is FaultKind.SHAPE:
        return "the arms route differently: they have not the same routed layers, experts and top-k; compare like with like"
    return (
        f"the arms route differently: the candidate's experts differ from the base's for the same prompts by "
        f"{format_percent(worst.differs_from_base_ratio or 0.0)} {where}, {format_percent(fault.allowed)} is allowed (the "
        "base's own scatter, or a rounding); compare arms that do the same work"
    )
