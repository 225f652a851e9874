"""A small process that outlives a killed gate just long enough to end the servers that it left.

It reads `add PID` and `drop PID` lines, each PID the leader of a session, from a pipe that only the gate holds. When the pipe
closes, however the gate ended, it kills every session still on its list. A gate that was killed may have started a process and
not yet said so: for a moment the reaper also looks for processes that carry the gate's mark in their environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from perfgate.machine.processes import end_session, list_marked, signal_session, wait_for_end

VARIABLE = "PERFGATE_GATE"
BYE = "close 0"
BIRTH_S = 1.0
"""A process that was forked when the gate was killed carries the mark once its program runs: well within this time."""


class Interruption:
    """Raise what a signal handler wants raised, at once or, inside `defer`, at its end."""

    def __init__(self) -> None:
        """Nothing is deferred and nothing waits."""
        self._depth = 0
        self.told: Exception | None = None
        self._is_pending = False

    def interrupt(self, error: Exception) -> None:
        """Raise `error` now, or keep it until the outermost `defer` ends."""
        self.told = error
        self._is_pending = self._depth > 0
        if not self._is_pending:
            raise error

    def check(self) -> None:
        """Raise once more what was raised and lost, by compiled code or in a destructor: before a long wait for others."""
        if self.told is not None:
            raise self.told

    def forget(self) -> None:
        """What ends with the run that was interrupted."""
        self.told = None

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Let no interruption in until the block ends."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth and self._is_pending:
            self._is_pending = False
            self.check()


INTERRUPTION = Interruption()
"""The one of this process: signals are the process's, too."""


class Reaper:
    """The gate's end of the pipe: it starts and ends the processes of a session. Use `with`: no process outlives the gate."""

    def __init__(self, *locks: int) -> None:
        """Start the reaper in a session of its own, so that a Ctrl-C at the terminal does not reach it.

        It holds the descriptors `locks` as long as it lives, so that no other process writes to the folder, or measures here,
        while leftovers still run.
        """
        name = f"{os.getpid()}-{time.time_ns()}"
        # Whatever the gate starts is to have this in its environment.
        self.mark = {VARIABLE: name}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perfgate.serving.engine.reaper", name],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=Path(__file__).parents[3],
            text=True,
            pass_fds=locks,
        )

    def __enter__(self) -> Self:
        """Nothing to begin: it runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the reaper end, on every path."""
        self.close()

    def start(self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, is_asked: bool = False) -> subprocess.Popen[Any]:
        """Start a process as the leader of a session of its own, on the list before a signal may end the run.

        It writes to `log`; one that `is_asked` takes and gives lines through pipes, and only its errors go there. Raise OSError
        where the program is not there.
        """
        with INTERRUPTION.defer(), log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if is_asked else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_asked else output,
                stderr=output,
                env={**env, **self.mark},
                start_new_session=True,
                text=True,
            )
            self.add(process.pid)
        return process

    def end(self, process: subprocess.Popen[Any], grace_s: float) -> list[int]:
        """End what `start` started, with its whole session; return the processes that survive even SIGKILL."""
        survivors = end_session(process.pid, grace_s)
        process.wait(timeout=10)
        if not survivors:
            self.drop(process.pid)
        return survivors

    def add(self, leader: int) -> None:
        """End the session of `leader` should the gate die."""
        self._write(f"add {leader}")

    def drop(self, leader: int) -> None:
        """Forget a session that has ended."""
        self._write(f"drop {leader}")

    def close(self) -> None:
        """Say that nothing is left unsaid, close the pipe and wait for the reaper's own end."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            # A reaper that was killed cannot be told to end.
            with contextlib.suppress(BrokenPipeError):
                self._write(BYE)
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait(timeout=30)

    def _write(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def reap(lines: IO[str], name: str) -> None:
    """Follow the list until the pipe closes, then kill what is on it and, after a gate that was killed, what bears its mark."""
    leaders: set[int] = set()
    line = ""
    for line in lines:
        verb, _, number = line.strip().partition(" ")
        (leaders.add if verb == "add" else leaders.discard)(int(number))
    kill(leaders)
    deadline = time.monotonic() + (0.0 if line.strip() == BYE else BIRTH_S)
    while time.monotonic() < deadline:
        kill(list_marked(f"{VARIABLE}={name}"))
        time.sleep(0.05)


def kill(leaders: set[int]) -> None:
    """Kill whole sessions and wait for their end."""
    for leader in leaders:
        signal_session(leader, signal.SIGKILL)
        wait_for_end(leader, 10.0)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    reap(sys.stdin, sys.argv[1])
