"""The gate with the fake engine as a command in a process of its own, and ways to end it early."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from perfgate.cli import main

ROOT = Path(__file__).parents[2]


def start_perfgate(state, *arguments, **env):
    """Start a command whose machine state lies in `state`; `env` is added to its environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.run_perfgate", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PERFGATE_STATE": str(state), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_perfgate(state, *arguments):
    """Run a command to its end; return its exit code and what it printed.

    Where the fake engine runs in threads, in this process: nothing of it is to be killed.
    """
    if "FAKE_PROCESSES" not in os.environ:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*map(str, arguments)])
        return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()
    process = start_perfgate(state, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def count_lines(folder):
    """How many windows and events a result folder tells of."""
    paths = (folder / "windows.jsonl", folder / "events.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in paths if path.exists())


def wait_for_lines(process, folder, lines):
    """Wait until a folder tells of so much, or the command has ended."""
    while process.poll() is None and count_lines(folder) < lines:
        time.sleep(0.002)


def kill_at(process, folder, lines):
    """Kill the gate once its folder tells of so much, or let it end if it never does."""
    wait_for_lines(process, folder, lines)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def read_lines(folder, name):
    """The JSON lines of a file in a result folder."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def copy_without_break(folder, target):
    """What would lie there had the windows that count been measured without a break."""
    shutil.copytree(folder, target)
    events = read_lines(folder, "events.jsonl")
    gone = {file for event in events for file in event.get("superseded", [])}
    write_lines(target / "events.jsonl", [event for event in events if event["event"] != "resumed"])
    write_lines(target / "windows.jsonl", [line for line in read_lines(folder, "windows.jsonl") if line["file"] not in gone])
    return target


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
