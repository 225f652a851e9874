"""Where a session's machine time went: starting servers, warming them up, measuring, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from perfgate.core import Role, Timing, Window


def measure_time(events: Sequence[Mapping[str, Any]], windows: Sequence[Window], superseded: Sequence[Window]) -> Timing | None:
    """Sum up what `events` and windows tell, in seconds; None where nothing was written down.

    The session took as long as the last moment that its folder knows of, on a clock that stands still while a session that was
    cut off rests.
    """
    last_s = max((*map(_read_moment, events), *(window.ended_s for window in windows)), default=0.0)
    if not 0 < last_s < inf:
        return None
    return Timing(
        took_s=last_s,
        starting_s=_measure_starts(events),
        warming_s=_sum(window for window in windows if window.role is Role.WARMUP),
        measuring_s=_sum(window for window in windows if window.role is not Role.WARMUP),
        superseded_s=_sum(superseded),
    )


def _sum(windows: Iterable[Window]) -> float:
    return sum(window.ended_s - window.begun_s for window in windows)


def _read_moment(event: Mapping[str, Any]) -> float:
    at_s = event.get("at_s")
    return float(at_s) if isinstance(at_s, int | float) else 0.0


def _measure_starts(events: Iterable[Mapping[str, Any]]) -> float:
    """Time during which at least one server was started and not yet ready; two that load side by side count once."""
    total_s = begun_s = 0.0
    loading = 0
    for event in events:
        at_s = _read_moment(event)
        match event.get("event"):
            case "server_started":
                begun_s = begun_s if loading else at_s
                loading += 1
            case "server_ready" if loading:
                loading -= 1
                total_s += 0.0 if loading else at_s - begun_s
            case "resumed":
                loading = 0
    return total_s
