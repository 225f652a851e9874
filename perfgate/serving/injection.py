"""A slow-down of known size, put into a served model through SGLang's own plug-in hook; off unless it is asked for.

The gate is only worth trusting if it finds a loss that somebody put there. `PERFGATE_INJECT=step:0.25` makes every forward step
of the server take a quarter longer; `PERFGATE_INJECT=tail:4.0` makes one step in 200 take five times as long. The extra time is
a share of the time that the step itself took, so it means the same on a fast and on a slow machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VARIABLE = "PERFGATE_INJECT"
TARGET = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
# Written to the server's log once the hook runs; the session refuses to call a server slowed that never said so.
PROOF = "perfgate injection active"
TAIL_PERIOD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Which steps are slowed, and by which share of their own duration."""

    kind: str
    ratio: float

    @property
    def period(self) -> int:
        """Every how many steps one is slowed."""
        return TAIL_PERIOD if self.kind == "tail" else 1


def parse_injection(text: str) -> Injection:
    """Read `step:0.25` or `tail:4.0`. Raise ValueError saying what is accepted."""
    kind, _, number = text.partition(":")
    try:
        ratio = float(number)
    except ValueError:
        ratio = -1.0
    if kind not in {"step", "tail"} or not 0 < ratio <= 100:
        raise ValueError(f"{text!r} is no injection: give step:RATIO or tail:RATIO with a ratio above 0 and at most 100")
    return Injection(kind=kind, ratio=ratio)


def slow_down(injection: Injection) -> Callable[..., Any]:
    """Build an AROUND hook that lets the original run and then waits for the injected share of its duration."""
    steps = 0

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        begun = time.perf_counter()
        result = original(*args, **kwargs)
        steps += 1
        if steps == 1:
            print(f"{PROOF}: {injection.kind}:{injection.ratio}", flush=True)
        if steps % injection.period == 0:
            time.sleep((time.perf_counter() - begun) * injection.ratio)
        return result

    return hook


def register() -> None:
    """Entry point `sglang.srt.plugins`: hook the server if, and only if, the environment asks for it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - exists in a server only

    HookRegistry.register(TARGET, slow_down(parse_injection(text)), HookType.AROUND)
