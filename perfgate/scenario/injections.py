"""How a slow-down of known size is written, in a scenario file and in `PERFGATE_INJECT`. `serving.injection` applies it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfgate.errors import InputError

REQUEST = "request"
"""Makes requests wait, and no step longer."""
TAIL_PERIOD = 200
MAX_PERIOD = 10_000
# Those that spin on the GPU.
SPINNING = ("gpu", "rank", "allreduce")
MAX_AMOUNT = {"step": 100.0, "tail": 100.0, **dict.fromkeys(("host", "prefill", "decode", REQUEST, *SPINNING), 100_000.0)}
# Without spaces, line ends and digits of other scripts: the text names a folder and stands in a server's log.
_NUMBER = re.compile(r"[0-9.e+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What is slowed, and by how much: a share of the step's own host time, or microseconds; one step of `period`."""

    kind: str
    amount: float
    period: int = 1

    @property
    def is_ratio(self) -> bool:
        """Whether the size is a share of every step by itself; else it is known only once it was measured."""
        return self.kind == "step" and self.period == 1

    @property
    def is_of_steps(self) -> bool:
        """Whether steps get longer. Where requests wait, none does: what was spent is no share of a step."""
        return self.kind != REQUEST


def parse_injection(text: str) -> Injection:
    """Read `step:0.25`, `tail:4.0`, `host:500`, `host:8000/50` or `gpu:10`. Raise InputError saying what is accepted."""
    kind, _, size = text.partition(":")
    number, slash, steps = size.partition("/")
    try:
        amount = float(number) if _NUMBER.fullmatch(number) else -1.0
    except ValueError:
        amount = -1.0
    if kind not in MAX_AMOUNT or not 0 < amount <= MAX_AMOUNT[kind]:
        raise InputError(
            f"{text!r} is no injection: give step:RATIO or tail:RATIO with a ratio above 0 and at most 100, or "
            "host:MICROSECONDS or gpu:MICROSECONDS with at most 100000; prefill:, decode: and request: as host:, rank: and "
            "allreduce: as gpu:"
        )
    if not slash:
        return Injection(kind=kind, amount=amount, period=TAIL_PERIOD if kind == "tail" else 1)
    # A captured graph repeats its spins in every replay: the GPU cannot be slowed in one step of many.
    if kind in SPINNING or not (steps.isascii() and steps.isdigit() and 2 <= int(steps[:6]) <= MAX_PERIOD):
        raise InputError(
            f"{text!r} is no injection: after / give in how many steps one is slowed, 2 to {MAX_PERIOD}, as in "
            f"host:8000/50; {', '.join(SPINNING)} slow every step"
        )
    return Injection(kind=kind, amount=amount, period=int(steps))


def explain_stepless(injection: Injection) -> str | None:
    """Say why no response of a metric can be read from an injection; None where one can."""
    if injection.is_of_steps:
        return None
    return (
        f"{injection.kind}:{injection.amount:g} makes requests wait and no step longer, so that no response can be read from "
        "it; give host: or gpu:"
    )


def require_response(text: str) -> str:
    """Check what a calibration is to inject. Raise ValueError for what is none, and where no response could be read."""
    try:
        why = explain_stepless(parse_injection(text))
    except InputError as error:
        raise ValueError(str(error)) from None
    if why is not None:
        raise ValueError(why)
    return text
