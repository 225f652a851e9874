"""What the threads of a served load do on the host: which process has which part, and the kernel's counters of each thread.

A sampler reads the main threads ten times a second, all others, the cores and the GPU twice, and keeps sums by the role of the
process and the name of the thread. A thread that ended between being listed and being read is left out.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import ServerError
from perfgate.machine.nvml import GpuMonitor
from perfgate.machine.processes import PROC, list_processes, list_session
from perfgate.serving.client import WORKER
from perfgate.serving.engine.server import Server

Roles = dict[int, str]
"""What each process is, by its number."""
COUNTERS = ("run_s", "delay_s", "slices", "user_s", "system_s", "faults", "voluntary", "involuntary")
"""Of a thread: on a core, waiting for one, how often put on one, in user and kernel mode, minor page faults, and switches."""
MAIN, FRONT_END = "scheduler main", "tokenizer main"
TITLES = ("scheduler", "detokenizer", "resource_tracker")
"""As SGLang's processes call themselves, and Python's helper."""
WATCHED = ("scheduler", "detokenizer", "tokenizer", "client")
FULL = 5
"""All threads are read at every so many-th call."""
LAPS = 5000
SEEN_S = 5e-4
"""A group that ran and waited less than this in a second is not told."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def list_tasks(pid: int) -> list[int]:
    """The threads of a process; none once it has ended."""
    try:
        return sorted(int(task.name) for task in (PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def find_roles(server: Server, idle: Server | None) -> Roles:
    """Name the processes of a driven server, of an idle one beside it, of the load generator and of this one.

    Raise ServerError where the server has no scheduler or detokenizer by that name.
    """
    me = os.getpid()
    roles = {me: "gate"}
    roles |= {one.pid: "client" for one in list_processes() if one.parent == me and str(WORKER) in _read_command(one.pid)}
    for leader in server.leaders:
        roles |= {pid: "tokenizer" if pid == leader else _name_part(pid) for pid in list_session(leader)}
    for leader in idle.leaders if idle is not None else ():
        roles |= dict.fromkeys(list_session(leader), "idle")
    missing = set(WATCHED) - set(roles.values())
    if missing:
        raise ServerError(
            f"no process of the server is a {' or a '.join(sorted(missing))}: read what its parts call themselves"
        )
    return roles


def _name_part(pid: int) -> str:
    command = _read_command(pid)
    return next((title for title in TITLES if title in command), "helper")


def _read_command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread at one moment: its name, state, the CPU that it ran on last, and COUNTERS since it began."""

    name: str
    state: str
    cpu: int
    counters: NDArray[np.float64]


def read_thread(pid: int, tid: int, proc: Path = PROC) -> Thread | None:
    """Read one thread; None where it has ended."""
    task = proc / str(pid) / "task" / str(tid)
    try:
        head, _, tail = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        status = (task / "status").read_text(encoding="utf-8", errors="replace")
        schedule = [int(word) for word in (task / "schedstat").read_text(encoding="ascii").split()]
    except OSError:
        return None
    words = tail.split()
    switches = [float(word) for word in re.findall(r"voluntary_ctxt_switches:\s+(\d+)", status)]
    faults, user, system = int(words[7]), int(words[11]) * _TICK_S, int(words[12]) * _TICK_S
    counters = np.array([schedule[0] / 1e9, schedule[1] / 1e9, schedule[2], user, system, faults, *switches], dtype=np.float64)
    return Thread(name=head.partition("(")[2], state=words[0], cpu=int(words[36]), counters=counters)


def read_cpus(proc: Path = PROC) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """The seconds that each CPU was busy and was withheld by the hypervisor, since the machine began."""
    for line in (proc / "stat").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if re.fullmatch(r"cpu\d+", name):
            user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, words[:8])
            yield name, np.array([user + nice + system + interrupts + soft, stolen], dtype=np.float64) * _TICK_S


@dataclass(slots=True, kw_only=True)
class Sampler:
    """What reads the threads of `roles` while a window runs, by calls of `read` from a thread of its own.

    It keeps to the last of the CPUs in `groups`, those of each physical core.
    """

    roles: Roles
    monitor: GpuMonitor | None
    groups: Sequence[Sequence[int]]
    begun: float = field(default_factory=time.monotonic)
    calls: int = 0
    series: dict[str, list[tuple[float, NDArray[np.float64]]]] = field(default_factory=dict)
    main: list[tuple[float, int, str]] = field(default_factory=list)
    _known: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _totals: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def read(self) -> None:
        """Read the main threads, and at some calls all there is."""
        if not self.calls:
            os.sched_setaffinity(0, {max(map(max, self.groups))})
        now, is_full = time.monotonic(), self.calls % FULL == 0
        groups = set()
        for pid, role in self.roles.items():
            for tid in list_tasks(pid) if is_full else [pid] if role in WATCHED else []:
                groups.add(self._add(now, pid, tid, role))
        for group in groups - {None}:
            self._keep(str(group), now, self._totals[str(group)].copy())
        if is_full:
            self._read_machine(now)
        self.calls += 1

    def _add(self, now: float, pid: int, tid: int, role: str) -> str | None:
        found = read_thread(pid, tid)
        if found is None:
            return None
        group = f"{role} main" if tid == pid else f"{role} {re.sub(r'[0-9]+', '', found.name)}"
        if group == MAIN:
            self.main.append((now, found.cpu, found.state))
        # What began after the first call did so within the window.
        before = self._known.get(tid, np.zeros(len(COUNTERS)) if self.calls else found.counters)
        self._totals[group] = self._totals.get(group, np.zeros(len(COUNTERS))) + found.counters - before
        self._known[tid] = found.counters
        return group

    def _read_machine(self, now: float) -> None:
        begun = time.perf_counter()
        for _ in range(LAPS):
            pass
        self._keep("lap", now, np.array([(time.perf_counter() - begun) * 1e6]))
        for name, times in read_cpus():
            self._keep(name, now, times)
        for device in self.monitor.read()[:1] if self.monitor is not None else ():
            self._keep("gpu", now, np.array([device.values.get(name, 0.0) for name in ("power_w", "sm_clock_mhz")]))

    def _keep(self, name: str, now: float, values: NDArray[np.float64]) -> None:
        is_sum = name in self._totals
        self.series.setdefault(name, [(self.begun, np.zeros(len(COUNTERS)))] if is_sum else []).append((now, values))

    def find_end(self, group: str) -> float:
        """The last moment at which a group was as busy as a fifth of its usual self; of this call where it never was."""
        told = self.series.get(group, [])
        times, run = np.array([at for at, _ in told]), np.array([values[0] for _, values in told])
        spent = np.diff(run)
        if not (spent > 0).any():
            return time.monotonic()
        return float(times[np.flatnonzero(spent > 0.2 * np.median(spent[spent > 0]))[-1] + 1])

    def _at(self, name: str, moments: NDArray[Any]) -> NDArray[np.float64]:
        """The values of a series at `moments`, by interpolation; of shape (moments, values)."""
        times, values = np.array([at for at, _ in self.series[name]]), np.array([one for _, one in self.series[name]])
        return np.array([np.interp(moments, times, column) for column in values.T]).T

    def tell(self, edges: NDArray[Any]) -> list[dict[str, Any]]:
        """What was done between each two of `edges`, which lie a second apart: by groups of threads, cores, and the GPU."""
        sums = {name: np.diff(self._at(name, edges), axis=0) for name in self.series if name not in ("lap", "gpu")}
        gauges = {name: self._at(name, edges[1:]) for name in ("lap", "gpu") if name in self.series}
        return [
            {
                "groups": {name: np.round(sums[name][at], 4).tolist() for name in self._list_seen(sums, at)},
                "cpus": {name[3:]: np.round(found[at], 3).tolist() for name, found in sums.items() if name not in self._totals},
                **{name: np.round(found[at], 1).tolist() for name, found in gauges.items()},
                **self._place(edges[at], edges[at + 1], {name: found[at][0] for name, found in sums.items()}),
            }
            for at in range(len(edges) - 1)
        ]

    def _list_seen(self, sums: dict[str, NDArray[np.float64]], at: int) -> list[str]:
        return [name for name in self._totals if sums[name][at][:2].sum() > SEEN_S]

    def _place(self, begun: float, ended: float, spent: dict[str, float]) -> dict[str, Any]:
        """Where the scheduler's main thread was, how often it moved, and how busy the siblings of its CPU were."""
        cpus = [cpu for at, cpu, _ in self.main if begun <= at < ended]
        if not cpus:
            return {}
        most = max(set(cpus), key=cpus.count)
        siblings = next((group for group in self.groups if most in group), ())
        busy = sum(spent.get(f"cpu{cpu}", 0.0) for cpu in siblings if cpu != most)
        moves = sum(before != after for before, after in pairwise(cpus))
        return {"cpu": most, "moves": moves, "sibling_s": round(float(busy), 3)}

    def tell_main(self, edges: NDArray[Any]) -> list[list[Any]]:
        """The scheduler's main thread between each two of `edges`: ms on a core, ms waiting for one, its last CPU and state."""
        spent = np.round(np.diff(self._at(MAIN, edges), axis=0)[:, :2] * 1e3, 2).tolist()
        places = np.searchsorted([at for at, _, _ in self.main], edges[1:]).clip(max=len(self.main) - 1)
        return [[*one, *self.main[place][1:]] for one, place in zip(spent, places, strict=True)]


def list_counters(values: Sequence[float]) -> dict[str, float]:
    """The counters of a group by their names."""
    return dict(zip(COUNTERS, values, strict=True))
