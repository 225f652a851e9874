"""The gate as its users start it: the real command, real SGLang, in a process of its own."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

AGAIN = "measured again, others voided it"
"""How a line begins that says so; at the end of a run such lines are shown of tests that passed, too."""


@dataclass(frozen=True)
class Ended:
    """What a finished command left."""

    code: int
    out: str
    err: str


def build_environment(state):
    """The environment of a command whose machine state lies in `state`, so that nothing of the user's is touched."""
    return {**os.environ, "PERFGATE_STATE": str(state), "PYTHONWARNINGS": "default"}


def run_perfgate(state, *arguments, timeout_s=1500):
    """Run a command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "perfgate", *map(str, arguments)],
        env=build_environment(state),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def interrupt_perfgate(state, number, marker, *arguments):
    """Start a command, wait until its progress says `marker`, send it a signal and return how it ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "perfgate", *map(str, arguments)],
        env=build_environment(state),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if marker in line:
                break
        else:
            pytest.fail(f"the command ended before it said {marker!r}: {''.join(seen[-5:])}")
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    return Ended(process.returncode, out, "".join(seen) + err)


def find_leftovers(state):
    """List processes that still carry `state` in their environment: whatever the gate started inherits it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                state_of = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"PERFGATE_STATE={state}".encode() in environment and state_of not in "ZX":
                found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def wait_for_leftovers(state, limit_s=15.0):
    """The reaper may need a moment after the command's own end."""
    deadline = time.monotonic() + limit_s
    while (found := find_leftovers(state)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def read_index(folder):
    """The index lines of a result folder."""
    return [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
