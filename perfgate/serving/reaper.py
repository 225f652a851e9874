"""A small process that outlives a killed gate just long enough to end the servers that it left.

It reads `add PID` and `drop PID` lines, each PID the leader of a session, from a pipe that only the gate holds. When the pipe
closes, however the gate ended, it kills every session still on its list.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO


class Reaper:
    """The gate's end of the pipe."""

    def __init__(self, lock: int | None = None) -> None:
        """Start the reaper in a session of its own, so that a Ctrl-C at the terminal does not reach it.

        It holds the descriptor `lock` as long as it lives, so that nobody writes to the folder while leftovers still run.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perfgate.serving.reaper"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            text=True,
            pass_fds=() if lock is None else (lock,),
        )

    def add(self, leader: int) -> None:
        """End the session of `leader` should the gate die."""
        self._write(f"add {leader}")

    def drop(self, leader: int) -> None:
        """Forget a session that has ended."""
        self._write(f"drop {leader}")

    def close(self) -> None:
        """Close the pipe and wait for the reaper's own end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)

    def _write(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def reap(lines: IO[str]) -> None:
    """Follow the list until the pipe closes, then kill what is on it."""
    from perfgate.serving.processes import signal_session, wait_for_end  # noqa: PLC0415 - after signals are ignored

    leaders: set[int] = set()
    for line in lines:
        verb, _, number = line.strip().partition(" ")
        (leaders.add if verb == "add" else leaders.discard)(int(number))
    for leader in leaders:
        signal_session(leader, signal.SIGKILL)
        wait_for_end(leader, 10.0)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    reap(sys.stdin)
