"""The process table of /proc, and process trees: what a server leaves behind can be found, ended and proven gone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_S = 0.05
# The state of a connection in /proc/net/tcp: TCP_ESTABLISHED.
_ESTABLISHED = "01"
_TICKS = os.sysconf("SC_CLK_TCK")
_SHARES_KIB = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
_RESIDENT_KIB = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process: who it is, whether it runs, and the CPU seconds of itself and of the children that it has waited for.

    A process that ended and that its parent has not waited for yet is in the table and not alive.
    """

    pid: int
    parent: int
    session: int
    cpu_s: float
    is_alive: bool


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Read one line of the process table; None when there is no process of that number."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The command name may hold spaces and parentheses; the fields follow its last parenthesis.
        state, parent, _group, session, *rest = stat.rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    ticks = sum(int(field) for field in rest[7:11])
    alive = state not in {"Z", "X"}
    return Process(pid=pid, parent=int(parent), session=int(session), cpu_s=ticks / _TICKS, is_alive=alive)


def list_processes(proc: Path = PROC) -> Iterator[Process]:
    """Yield every process that can be read; one that ends meanwhile is left out."""
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    yield from (process for pid in pids if (process := read_process(pid, proc)) is not None)


def is_alive(pid: str) -> bool:
    """Whether a process of that number runs, of any user. What is no number is no process."""
    process = read_process(int(pid)) if pid.isdecimal() else None
    return process is not None and process.is_alive


def list_ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first, as far as /proc tells."""
    while pid > 1 and (process := read_process(pid)) is not None:
        pid = process.parent
        yield pid


def list_session(leader: int) -> list[int]:
    """List the living processes of the session that `leader` leads."""
    return [process.pid for process in list_processes() if process.is_alive and process.session == leader]


def read_session(pid: int) -> int | None:
    """The session of a living process; None when there is none of that number."""
    process = read_process(pid)
    return process.session if process is not None and process.is_alive else None


def read_thread_time(pid: int, proc: Path = PROC) -> float | None:
    """The seconds that a process' main thread has been on a core; None where it ended or the kernel does not tell."""
    try:
        return int((proc / str(pid) / "task" / str(pid) / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def list_connected(pids: Iterable[int], port: int) -> tuple[int, ...]:
    """Those of `pids` that hold an established connection of a client to `port` of this machine.

    A connection that waits for `accept` is nobody's. A child that is forked while one is open holds it too, and counts.
    """
    wanted = _list_sockets(port)
    return tuple(pid for pid in pids if not wanted.isdisjoint(_list_open(PROC / str(pid) / "fd")))


def _list_sockets(port: int) -> set[str]:
    """The established TCP connections whose local port is `port`, as links to an open socket name them."""
    found = set()
    for table in ("tcp", "tcp6"):
        # A kernel without IPv6 lacks the second.
        with contextlib.suppress(OSError):
            rows = map(str.split, (PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:])
            found |= {
                f"socket:[{row[9]}]" for row in rows if row[3] == _ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port
            }
    return found


def _list_open(folder: Path) -> set[str]:
    """What a process' open files are links to; those that it closes meanwhile, or all where it ends, are left out."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def measure_memory(leader: int) -> int:
    """Bytes that the living processes of a session hold themselves, without pages of files.

    A page that several processes share counts once: forked workers that come and go would else look like gigabytes.
    """
    kib = 0
    for pid in list_session(leader):
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            kib += _read_own_kib(PROC / str(pid))
    return kib * 1024


def _read_own_kib(folder: Path) -> int:
    """A process's share of its anonymous and shared memory; all that is resident where the kernel does not tell shares."""
    with contextlib.suppress(OSError):
        if found := _SHARES_KIB.findall((folder / "smaps_rollup").read_text(encoding="ascii")):
            return sum(map(int, found))
    return sum(map(int, _RESIDENT_KIB.findall((folder / "status").read_text(encoding="utf-8", errors="replace"))))


def list_marked(mark: str) -> set[int]:
    """The sessions of living processes that were started with `mark`, a NAME=VALUE, in their environment."""
    found = set()
    for process in list_processes():
        with contextlib.suppress(OSError):
            if process.is_alive and mark.encode() in (PROC / str(process.pid) / "environ").read_bytes().split(b"\0"):
                found.add(process.session)
    return found


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to each living process of a session."""
    for pid in list_session(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_for_end(leader: int, timeout_s: float) -> list[int]:
    """Wait until a session has no living process; return those that are left after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := list_session(leader)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def end_session(leader: int, grace_s: float) -> list[int]:
    """Ask the leader to end, then kill what is left of its session; return the processes that survived even that."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
    if wait_for_end(leader, grace_s):
        signal_session(leader, signal.SIGKILL)
    return wait_for_end(leader, 10.0)
