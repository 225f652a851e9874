"""Run a user's command and leave no process of it behind, neither after its end nor after that of perfgate."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perfgate.machine.processes import end_session
from perfgate.serving.engine.reaper import INTERRUPTION, Reaper

GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Runs commands as sessions of their own, which the reaper ends should this process be killed."""

    reaper: Reaper

    def run(self, argv: list[str], folder: Path, output: Path, timeout_s: float) -> int:
        """Run `argv` in `folder` and return its exit code; it prints into `output` and, its errors, into `output`.err.

        Raise OSError when it cannot be started, TimeoutExpired when it did not end in time.
        """
        with output.open("wb") as out, name_errors(output).open("wb") as err:
            with INTERRUPTION.defer():
                process = subprocess.Popen(
                    argv,
                    cwd=folder,
                    env=os.environ | self.reaper.mark,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
                self.reaper.add(process.pid)
            try:
                return process.wait(timeout=timeout_s)
            finally:
                # Its children, too, would disturb what is measured next.
                end_session(process.pid, GRACE_S if process.poll() is None else 0.0)
                process.wait()
                self.reaper.drop(process.pid)


def name_errors(output: Path) -> Path:
    """Where a command's errors lie."""
    return output.with_suffix(output.suffix + ".err")


def read_last(output: Path) -> str:
    """The last line that a command printed, or the last of its errors if it printed nothing."""
    for path in (output, name_errors(output)):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            return lines[-1].strip()
    return ""
