"""What an injected slow-down really spent: the server writes it into its log, calibration and tests read it there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Written once the hook runs; a session whose slowed server never wrote it is void.
PROOF = "perfgate injection active"
MEASURED = "perfgate injection measured: "
INJECTED = "injected"
"""Event of a result folder: what one server's steps were made to spend in all."""

PERIOD = 100
"""Steps between two lines of the log."""


def announce(kind: str, amount: float) -> None:
    """Say in the server's log that the hook runs."""
    print(f"{PROOF}: {kind}:{amount:g}", flush=True)


def log_injected(kind: str, *, injected_us: float, **more: float) -> None:
    """Say in the server's log what the last PERIOD steps were made to spend."""
    facts = {"kind": kind, "steps": PERIOD, "injected_us": round(injected_us, 3), **more}
    print(f"{MEASURED}{json.dumps(facts)}", flush=True)


@dataclass(slots=True)
class Tally:
    """Says which steps are slowed, one of `period`; sums up what was injected, and logs it every hundred steps.

    Requests overlap: `begun` counts those that came, `steps` those that are through.
    """

    kind: str
    amount: float
    period: int = 1
    begun: int = 0
    steps: int = 0
    injected_us: float = 0.0

    def begin(self) -> bool:
        """Begin a step, and say whether it is slowed; the first one says in the log that the hook runs."""
        self.begun += 1
        if self.begun == 1:
            announce(self.kind, self.amount)
        return self.begun % self.period == 0

    def add(self, *, injected_us: float) -> None:
        """Count one step and what it was made to spend."""
        self.steps += 1
        self.injected_us += injected_us
        if self.steps % PERIOD == 0:
            log_injected(self.kind, injected_us=self.injected_us)
            self.injected_us = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What so many steps were made to spend, in microseconds."""

    steps: float
    injected_us: float


def read_spent(log: Path) -> Spent | None:
    """Sum up the lines of one server's log; None where it has none."""
    return add_up(Spent(**found) for found in _read_lines(log))


def add_up(parts: Iterable[Spent]) -> Spent | None:
    """The sum over several servers or stretches; None of nothing."""
    told = list(parts)
    steps = sum(part.steps for part in told)
    return Spent(steps=steps, injected_us=sum(part.injected_us for part in told)) if steps else None


def read_injected_us(logs: Iterable[Path]) -> float | None:
    """The mean microseconds that a step was made to spend, over all of several servers' steps; None where no log has any."""
    whole = add_up(spent for log in logs if (spent := read_spent(log)) is not None)
    return None if whole is None else whole.injected_us / whole.steps


def _read_lines(log: Path) -> list[dict[str, float]]:
    """Pick the lines out of a log in which the engine's own processes write too; a line cut in half by them is left out."""
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        _, mark, text = line.partition(MEASURED)
        try:
            facts = json.loads(text) if mark else None
        except json.JSONDecodeError:
            continue
        if facts is not None:
            found.append({name: float(facts[name]) for name in ("steps", "injected_us")})
    return found
