"""Whether a window was the same work as its neighbours, by its own readings.

A server that compiles a kernel, captures a graph, retracts requests or begins one of its processes anew while a window runs
does work that the other windows lack. A window recorded before these were watched tells nothing of them and counts as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfgate.results.readings import GRAPHS_CAPTURED, KERNELS_COMPILED, PROCESSES_RESTARTED, REQUESTS_RETRACTED
from perfgate.storage.rounding import format_count

_STOP = "raise warmup.max_discards, or find out from the server's log why it does so in every window"
_SHARED = "without --caches a program of the same user that compiles meanwhile is counted, too"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How one kind of other work is described, and what to do where it never ends."""

    verb: str
    noun: str
    advice: str


_KINDS = {
    KERNELS_COMPILED: _Kind(verb="compiled", noun="kernel", advice=f"{_STOP}; {_SHARED}"),
    GRAPHS_CAPTURED: _Kind(verb="captured", noun="graph", advice=_STOP),
    REQUESTS_RETRACTED: _Kind(
        verb="retracted",
        noun="request",
        advice="give the server a larger token pool or send fewer requests at a time; a measurement of retraction itself says "
        "allow_retraction = true",
    ),
    PROCESSES_RESTARTED: _Kind(verb="restarted", noun="process", advice="find out from the server's log why its processes end"),
}


def describe_other_work(telemetry: Mapping[str, float], *, allows_retraction: bool = False) -> str:
    """Say what a server did in a window besides serving, such as "compiled 3 kernels"; empty for nothing or nothing known."""
    found = [
        f"{_KINDS[name].verb} {format_count(telemetry[name], _KINDS[name].noun)}"
        for name in _find(telemetry, allows_retraction=allows_retraction)
    ]
    return " and ".join(found)


def advise(telemetry: Mapping[str, float], *, allows_retraction: bool = False) -> str:
    """Say what to do where each window of a server has such work; `telemetry` is one window's, with some of it."""
    return "; ".join(dict.fromkeys(_KINDS[name].advice for name in _find(telemetry, allows_retraction=allows_retraction)))


def _find(telemetry: Mapping[str, float], *, allows_retraction: bool) -> list[str]:
    allowed = {REQUESTS_RETRACTED} if allows_retraction else set()
    return [name for name in _KINDS if name not in allowed and telemetry.get(name, 0.0) > 0]
