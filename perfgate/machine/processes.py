"""Process trees: everything that a server leaves behind can be found, ended and proven gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

POLL_S = 0.05


def list_session(leader: int) -> list[int]:
    """List the living processes of the session that `leader` leads (zombies are not alive), by /proc, the kernel's own book."""
    return [pid for pid in _list_pids() if read_session(pid) == leader]


def _list_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read_session(pid: int) -> int | None:
    """The session of a living process; None when there is none of that number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name may hold spaces and parentheses; the fields follow its last parenthesis.
    state, _parent, _group, session, *_ = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(session)


def measure_memory(leader: int) -> int:
    """Resident bytes of all living processes of a session; pages that they share are counted in each."""
    pages = 0
    for pid in list_session(leader):
        # It may end meanwhile.
        with contextlib.suppress(OSError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def list_marked(mark: str) -> set[int]:
    """The sessions of living processes that were started with `mark`, a NAME=VALUE, in their environment."""
    found = set()
    for pid in _list_pids():
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(read_session(pid))
    return {session for session in found if session is not None}


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
