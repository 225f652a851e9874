"""Measure again what the work of others voided, so that no test needs a quiet machine; what a valid session must say stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from perfgate.check import Case
from perfgate.core import Outcome, Window
from perfgate.gate.case import load_case
from perfgate.results.readings import FOREIGN_CPU, STOLEN_CPU
from tests.e2e.commands import AGAIN

TRIES = 3
ADVICE = ("stop other work on the machine", "is something else running on this machine?")
"""What the judge advises where the work of others may be the cause. A defect of a server may look the same."""
# Beside nothing but the gate itself a window shows 2 % at most.
IDLE_SHARE = 0.05

Measured = TypeVar("Measured")


def measure_undisturbed(
    measure: Callable[[Path], Measured], folder: Path, find_void: Callable[[Measured], Path | None]
) -> Measured:
    """Measure in a folder of its own, and in another one where the work of others, and nothing else, voided that.

    `find_void` names the session that was voided, None where none was. A defect that looks like the work of others shows each
    time: after so many tries the last one counts.
    """
    for number in range(1, TRIES):
        measured = measure(folder / f"try-{number}")
        void = find_void(measured)
        disturbance = name_disturbance(load_case(void)) if void is not None else ""
        if not disturbance:
            return measured
        print(f"{AGAIN}: {disturbance}")
    return measure(folder / f"try-{TRIES}")


def name_disturbance(case: Case) -> str:
    """The reasons for which a session is void, where others had the machine meanwhile and that explains all; else nothing."""
    reasons = case.verdict.reasons
    if case.verdict.outcome is not Outcome.INVALID or not all(is_of_others(reason, case) for reason in reasons):
        return ""
    return "; ".join(reasons)


def is_of_others(reason: str, case: Case) -> bool:
    """Whether a reason asks for less other work, and such work was seen: in what it names, or in any window."""
    windows = (*case.session.windows, *case.session.superseded)
    named = [window for window in windows if reason.startswith((f"{window.name}: ", f"start {window.start}: "))]
    return any(advice in reason for advice in ADVICE) and any(read_lost(window) > IDLE_SHARE for window in named or windows)


def read_lost(window: Window) -> float:
    """The share of the processor time that others had of a window."""
    return sum(window.telemetry.get(name, 0.0) for name in (FOREIGN_CPU, STOLEN_CPU))
