"""What a server cost besides its latencies: how long it took to get ready, how much memory it held after a window.

These are true of a server start or of a moment, not of requests; they become metrics of its windows, so that a scenario may
gate them as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any

from perfgate.core import Run
from perfgate.results.folders import read_number, read_whole

SERVER_MEMORY = "server_memory_bytes"
"""Telemetry: resident memory of the server's processes when the window had ended, shared pages counted in each of them."""

GPU_MEMORY = "gpu_memory_used_bytes"
"""Telemetry: the largest memory in use on one GPU, whatever process holds it."""

_MIB = 2**20


PHASES = ("ready_s", "weights_s", "compile_s", "capture_s")
"""What a start may take: until its first token, for its weights, for compilation, for graphs; the latter by its own log."""

IDLE_SERVER_MEMORY, IDLE_GPU_MEMORY = "idle_server_memory_mib", "idle_gpu_memory_mib"
"""What a server holds once it is ready, before its first window."""


def read_starts(events: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """The seconds that each server start took, by phase, and the memory that it held then."""
    return {
        event["start"]: found
        for event in events
        if event.get("event") == "server_ready" and isinstance(event.get("start"), int) and (found := _read_start(event))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """The first start of an arm, which found no compiled kernel, beside the median of those that found some.

    `cold_ready_s` and `warm_ready_s` are seconds until the first token, their difference is what an empty cache costs a user
    who installs a new release; `kernels` were compiled in that start. `warm_ready_s` is None with a cold start alone.
    """

    arm: str
    start: int
    cold_ready_s: float
    warm_ready_s: float | None
    kernels: int


def read_cold_starts(events: Iterable[Mapping[str, Any]]) -> tuple[ColdStart, ...]:
    """The starts with an empty Triton cache, in their order; none where the arms have no caches of their own (`--caches`).

    Raise EvidenceError for an event whose number is none.
    """
    recorded = list(events)
    begun = {
        read_whole(event, "start"): event
        for event in recorded
        if event.get("event") == "server_started" and "cached_kernels" in event
    }
    told = {
        event["start"]: event
        for event in recorded
        if event.get("event") == "server_ready" and isinstance(event.get("start"), int) and event["start"] in begun
    }
    cached = {number: read_number(event, "cached_kernels") for number, event in begun.items()}
    ready = {number: read_number(event, "ready_s") for number, event in told.items()}
    found = []
    for number, ready_s in sorted(ready.items()):
        arm = str(begun[number].get("arm"))
        warm = [ready[other] for other in ready if begun[other].get("arm") == arm and cached[other] > 0]
        if cached[number] == 0:
            found.append(
                ColdStart(
                    arm=arm,
                    start=number,
                    cold_ready_s=ready_s,
                    warm_ready_s=median(warm) if warm else None,
                    kernels=read_whole({"compiled_kernels": 0, **told[number]}, "compiled_kernels"),
                )
            )
    return tuple(found)


def _read_start(event: Mapping[str, Any]) -> dict[str, float]:
    recorded = {name: event.get(name) for name in (*PHASES, IDLE_SERVER_MEMORY, IDLE_GPU_MEMORY)}
    return {name: float(value) for name, value in recorded.items() if isinstance(value, int | float) and 0 < value < inf}


def add_footprint(run: Run, start: Mapping[str, float], telemetry: Mapping[str, float], *, is_alone: bool) -> Run:
    """Put what a start took and a window's memory among its values.

    Both the GPU's memory and the time to ready are a server's own only where no other server of the session is resident, so
    that it `is_alone`: of two that load side by side, the second is asked once the first has answered.
    """
    values = {
        **(start if is_alone else {}),
        "server_memory_mib": telemetry.get(SERVER_MEMORY, 0.0) / _MIB,
        "gpu_memory_mib": telemetry.get(GPU_MEMORY, 0.0) / _MIB if is_alone else 0.0,
    }
    return replace(run, values={**run.values, **{name: value for name, value in values.items() if value > 0}})
