"""How the machine's CPU time was spent while a window ran: by the session's own processes, by others, by other machines.

All of it comes from counters of /proc that only grow, read once before and once after a window, so that watching costs the
measurement nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.machine.processes import PROC, Process, list_processes

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """CPU seconds since the machine started: of all cores in use, stolen by the hypervisor, and of our own processes."""

    total_s: float
    busy_s: float
    stolen_s: float
    own_s: float


def read_times(gate: int, proc: Path = PROC) -> HostTimes | None:
    """Read the counters. `gate` is the process whose tree, sessions of its children included, is the session's own.

    None where the kernel keeps no such books, as in some sandboxes.
    """
    fields = _read_cpu(proc)
    if fields is None or sum(fields) == 0:
        return None
    user, nice, system, idle, waiting, interrupts, soft, stolen = fields
    busy = user + nice + system + interrupts + soft
    return HostTimes(
        total_s=(busy + idle + waiting + stolen) / _TICKS,
        busy_s=busy / _TICKS,
        stolen_s=stolen / _TICKS,
        own_s=sum(process.cpu_s for process in find_own(gate, list(list_processes(proc)))),
    )


def compare_times(before: HostTimes | None, after: HostTimes | None) -> dict[str, float]:
    """The shares of the CPU time between two readings; nothing where a reading is absent or no time has passed."""
    if before is None or after is None or after.total_s <= before.total_s:
        return {}
    total = after.total_s - before.total_s
    own = max(0.0, after.own_s - before.own_s)
    busy = after.busy_s - before.busy_s
    return {
        # A process's own counter may run ahead of the machine's by a tick.
        "foreign_cpu_share": max(0.0, busy - own) / total,
        "own_cpu_share": min(1.0, own / total),
        "stolen_cpu_share": max(0.0, after.stolen_s - before.stolen_s) / total,
    }


def find_busiest_share(used: Sequence[tuple[float, float | None]]) -> float | None:
    """The largest share of a core that a thread had over a second; None where no two readings lie so far apart.

    `used` are moments in seconds and the thread's seconds on a core by then, which is None where it was not told.
    """
    told = [(at_s, run_s) for at_s, run_s in used if run_s is not None]
    shares, end = [], 0
    for at_s, run_s in told:
        while end < len(told) and told[end][0] < at_s + 1.0:
            end += 1
        if end < len(told):
            shares.append((told[end][1] - run_s) / (told[end][0] - at_s))
    return max(shares, default=None)


def find_own(gate: int, processes: list[Process]) -> list[Process]:
    """The gate, its children and their descendants, and all processes of a session that one of its children leads.

    A server's helper whose parent died belongs to the server's session still.
    """
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    leaders = {child.pid for child in children.get(gate, ()) if child.pid == child.session}
    own = {process.pid: process for process in processes if process.pid == gate or process.session in leaders}
    waiting = [gate]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            own[child.pid] = child
            waiting.append(child.pid)
    return list(own.values())


def read_run_queue(proc: Path = PROC) -> float | None:
    """How many tasks run or wait for a core at this moment, this reader included; None where the kernel does not tell."""
    words = _read_stat(proc).get("procs_running")
    return float(words[0]) if words else None


def _read_cpu(proc: Path) -> tuple[int, ...] | None:
    words = _read_stat(proc).get("cpu", [])
    # Guests' time is counted within user time already.
    return tuple(int(word) for word in words[:8]) if len(words) >= 8 else None


def _read_stat(proc: Path) -> Mapping[str, list[str]]:
    try:
        lines = (proc / "stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {words[0]: words[1:] for line in lines if (words := line.split())}
