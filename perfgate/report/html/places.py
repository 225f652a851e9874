"""What became of each window of a session: judged, cold, stalled and replaced, or left out, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from perfgate.check import Case
from perfgate.core import Arm, Role, Window
from perfgate.verdict.series import read_blocks
from perfgate.verdict.validity.structure import sort_by_time

OUTLINES = {Arm.BASE: "circle", Arm.CANDIDATE: "diamond"}


class WindowUse(StrEnum):
    """What a window counts for, in words."""

    JUDGED = "judged"
    COLD = "warm-up, discarded"
    REPLACED = "stalled, replaced by its re-run"
    OTHER_WORK = "compiled, captured, retracted or restarted, replaced by its re-run"
    UNUSED = "measured, not judged"
    CUT_OFF = "of a block that was cut off, measured anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A window and what became of it; `number` counts windows in the order of time from 1."""

    number: int
    window: Window
    use: WindowUse

    @property
    def is_rerun(self) -> bool:
        """Whether it was measured again for one that stalled."""
        return self.window.role is Role.RERUN

    @property
    def middle_s(self) -> float:
        """The middle of its time."""
        return (self.window.begun_s + self.window.ended_s) / 2

    @property
    def label(self) -> str:
        """Where it stands, and what became of it."""
        again = ", a re-run" if self.is_rerun else ""
        return f"{self.window.name}{again}: {self.use}"


def place_windows(case: Case) -> tuple[Placed, ...]:
    """All windows in the order of time, those of blocks that were cut off among them."""
    session, policy = case.session, case.policy
    rules = policy.limits.rules
    blocks = read_blocks(session, policy)[: case.verdict.blocks]
    judged = {window.run.source for block in blocks for window in (*block.base, *block.candidate)}
    decided = {block.number for block in blocks}
    cut = {window.run.source for window in session.superseded}

    def decide(window: Window) -> WindowUse:
        if window.run.source in cut:
            return WindowUse.CUT_OFF
        if window.role is Role.WARMUP:
            return WindowUse.COLD
        if window.run.source in judged:
            return WindowUse.JUDGED
        if window.block not in decided:
            return WindowUse.UNUSED
        if rules.describe(window.telemetry):
            return WindowUse.OTHER_WORK
        return WindowUse.REPLACED if window.role is Role.MEASURED else WindowUse.UNUSED

    ordered = sort_by_time((*session.windows, *session.superseded))
    return tuple(Placed(number=number, window=window, use=decide(window)) for number, window in enumerate(ordered, 1))


def pick_evidence(placed: Iterable[Placed]) -> tuple[Placed, ...]:
    """The judged windows; where nothing was judged, those that were measured to be."""
    found = tuple(placed)
    judged = tuple(one for one in found if one.use is WindowUse.JUDGED)
    return judged or tuple(one for one in found if one.use is WindowUse.UNUSED)
