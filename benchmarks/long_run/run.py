"""A long session that is killed and resumed at random ends in the verdict of the same windows undisturbed, in flat memory.

    python -m benchmarks.long_run.run [--kills 12] [--seed 1]

Six blocks of two starts with 17 windows each: 204 windows, 12 server starts, real processes, the fake engine of the tests in
place of SGLang. The session runs twice: undisturbed in one life, then killed at random numbers of lines of its folder and
resumed by the same command. A block that was cut is measured anew, so that folder holds more windows than count. Memory is the
gate's resident set, at every tenth window of a life and at its last.

Writes `results.json` beside this file and the tables of `docs/evidence/long-run.md`. Exit code 1, with a line for each fault,
when the verdict is not that of the windows that count, a window counts twice or is missing, a process is left, or memory grows.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from perfgate.gate.case import load_case
from perfgate.results.results import load_results
from perfgate.results.words import describe_driver_problem
from perfgate.storage.rounding import format_verdict
from perfgate.verdict.policy import RULE
from tests.e2e.commands import wait_for_leftovers
from tests.fakes.commands import copy_without_break, count_lines, start_perfgate
from tests.fakes.requests import build_text

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/evidence/long-run.md"
MARKS = "<!-- results: begin -->", "<!-- results: end -->"
WINDOWS, BLOCKS = 15, 6
# What counts in the end: in each block two starts, each with two windows before the measured ones.
ALL_WINDOWS, ALL_STARTS = BLOCKS * 2 * (WINDOWS + 2), BLOCKS * 2
MIB = 2**20
# By then a life has ended a block and judged it, so that everything is loaded; after it, memory may grow by so much.
LOADED_AFTER_WINDOWS = 40
MAX_GROWTH_MIB = 2.0
CHANGES = {
    "calibrate_first = true": "calibrate_first = false",
    "looks = [2, 3, 4, 6]": f"looks = [{BLOCKS}]",
    "windows = 3": f"windows = {WINDOWS}",
    "budget_minutes = 20.0": "budget_minutes = 600.0",
}
# What a session leaves behind a window: its line; around a block: starting, ready, stopping of two servers, the block's end.
LINES_A_BLOCK = 2 * (2 + WINDOWS) + 7


def main(kills: int, seed: int) -> int:
    """Run undisturbed, run with kills, write down what was found; 1 if any of it must not be."""
    commit = subprocess.run(["/usr/bin/env", "git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    runs = [live(count, seed) for count in (0, kills)]
    found = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "rule": RULE,
        "python": f"Python {platform.python_version()}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seed": seed,
        "runs": runs,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{draw_tables(found)}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")
    faults = [f"with {run['kills']} kills: {fault}" for run in runs for fault in list_faults(run)]
    print(draw_tables(found), *faults, sep="\n")
    return 1 if faults else 0


def live(kills: int, seed: int) -> dict[str, Any]:
    """One session from its first start to its verdict, in one life more than there are kills."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenario.toml").write_text(build_text(**CHANGES))
        begun = time.monotonic()
        lives = list(live_through(folder, draw_kills(kills, seed)))
        took_s = round(time.monotonic() - begun, 1)
        return {"kills": kills, **describe(folder), "took_s": took_s, "lives": lives}


def list_faults(run: Mapping[str, Any]) -> list[str]:
    """What of a run must not be, a line each."""
    faults = [f"still running after a life: {command}" for life in run["lives"] for command in life["left"]]
    faults += [f"counts twice: {place}" for place in run["counted_twice"]]
    faults += [f"the folder is unsound: {problem}" for problem in run["problems"]]
    if not run["equals_undisturbed"]:
        faults.append("the verdict is not that of the windows that count, measured without a break")
    if run["outcome"] != "REGRESSION":
        faults.append(f"a candidate that takes half as long again ends in {run['outcome']}")
    if (run["windows"], run["server_starts_that_count"]) != (ALL_WINDOWS, ALL_STARTS):
        found = f"{run['windows']} windows of {run['server_starts_that_count']} starts count"
        faults.append(f"{found}; {ALL_WINDOWS} of {ALL_STARTS} should")
    grown = [measure_growth(life["memory_mib"]) for life in run["lives"]]
    faults += [f"life {number} grew by {mib:.1f} MiB" for number, mib in enumerate(grown, start=1) if mib > MAX_GROWTH_MIB]
    return faults


def measure_growth(memory: list[list[float]]) -> float:
    """MiB that a life gained once everything was loaded; 0 for a life too short to tell."""
    loaded = [mib for windows, mib in memory if windows >= LOADED_AFTER_WINDOWS]
    return max(loaded) - loaded[0] if loaded else 0.0


def draw_kills(count: int, seed: int) -> list[int]:
    """How many lines each life may add before it is killed: up to a block and a half, so that the session gets on."""
    draw = random.Random(seed)  # noqa: S311 - a seed is the point
    return [draw.randrange(1, LINES_A_BLOCK * 3 // 2) for _ in range(count)]


def live_through(folder: Path, kills: list[int]) -> Iterator[dict[str, Any]]:
    """Start the gate, kill it after so many more lines, start it again; the last life ends by itself."""
    out = folder / "out"
    for number, lines in enumerate([*kills, None]):
        resume = ("--resume",) if (out / "session.json").exists() else ()
        command = ("gate", folder / "scenario.toml", "--out", out, "--profile", "never", "--candidate-env", "FAKE_SLOW=1.5")
        before = count_lines(out)
        process = start_perfgate(folder / "state", *command, *resume, PERFGATE_LONG_RUN=str(number))
        memory = watch(process, out, None if lines is None else before + lines)
        _, err = process.communicate()
        left = wait_for_leftovers(folder / "state")
        yield {
            "lines": count_lines(out) - before,
            "code": process.returncode,
            "left": [command for _, command in left],
            "said": [line for line in err.splitlines() if "continuing after" in line],
            "memory_mib": memory,
        }


def watch(process: Popen[str], out: Path, last: int | None) -> list[list[float]]:
    """Follow the gate's memory until it ends or has written `last` lines, and kill it there.

    Pairs of windows measured by this life and MiB, one for every ten windows and one for the last, each as the window ended:
    what writing the verdict takes afterwards is not looked at.
    """
    gate, before = psutil.Process(process.pid), count_windows(out)
    seen: dict[int, list[float]] = {}
    latest: list[float] = []
    while process.poll() is None:
        windows = count_windows(out) - before
        memory = read_memory(gate)
        if memory and windows > (latest[0] if latest else 0):
            latest = [windows, round(memory, 1)]
            seen.setdefault(windows // 10 * 10, latest)
        if last is not None and count_lines(out) >= last:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    return [*seen.values(), *([latest] if latest and latest not in seen.values() else [])]


def read_memory(gate: psutil.Process) -> float:
    """MiB of a process; 0 for one that has ended."""
    try:
        return gate.memory_info().rss / MIB
    except psutil.Error:
        return 0.0


def count_windows(out: Path) -> int:
    """How many windows the folder holds."""
    path = out / "windows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def describe(folder: Path) -> dict[str, Any]:
    """What the folder holds in the end, and whether its verdict is the undisturbed one."""
    out = folder / "out"
    _, session = load_results(out)
    undisturbed = copy_without_break(out, folder / "undisturbed")
    verdict = load_case(undisturbed, is_fixed=True).verdict
    places = Counter((window.block, window.arm, window.index) for window in session.windows)
    return {
        "outcome": json.loads((out / "verdict.json").read_bytes())["outcome"],
        "equals_undisturbed": format_verdict(verdict) == (out / "verdict.json").read_bytes(),
        "windows": len(session.windows),
        "server_starts_that_count": len({window.start for window in session.windows}),
        "windows_superseded": len(session.superseded),
        "counted_twice": [str(place) for place, count in places.items() if count > 1],
        "problems": [describe_driver_problem(problem) for problem in session.problems],
    }


def draw_tables(found: Mapping[str, Any]) -> str:
    """What was measured and where, a column for each run, and the memory of the undisturbed life."""
    runs = found["runs"]
    head = f"{found['date']}, commit {found['commit']}, rule {found['rule']}, {found['python']}, {found['machine']}."
    rows: dict[str, list[Any]] = {
        "kills": [run["kills"] for run in runs],
        "windows that count": [run["windows"] for run in runs],
        "windows of blocks that were cut, kept and not counted": [run["windows_superseded"] for run in runs],
        "server starts that count": [run["server_starts_that_count"] for run in runs],
        "windows that count twice": [len(run["counted_twice"]) for run in runs],
        "processes left after any life": [sum(len(life["left"]) for life in run["lives"]) for run in runs],
        "verdict": [run["outcome"] for run in runs],
        "the same bytes as of the windows that count, without a break": [_say(value=run["equals_undisturbed"]) for run in runs],
        f"most MiB that a life gained after its {LOADED_AFTER_WINDOWS}th window": [_draw_growth(run) for run in runs],
        "seconds": [f"{run['took_s']:.0f}" for run in runs],
        "faults": [len(list_faults(run)) for run in runs],
    }
    table = ["| | undisturbed | killed |", "|:--|--:|--:|"]
    table += [f"| {name} | " + " | ".join(map(str, values)) + " |" for name, values in rows.items()]
    memory = [
        "| window | MiB |",
        "|--:|--:|",
        *(f"| {windows:.0f} | {mib:.1f} |" for windows, mib in runs[0]["lives"][0]["memory_mib"]),
    ]
    return "\n\n".join([head, "\n".join(table), "The undisturbed life's memory:", "\n".join(memory)])


def _say(*, value: bool) -> str:
    return "yes" if value else "**no**"


def _draw_growth(run: Mapping[str, Any]) -> str:
    return f"{max(measure_growth(life['memory_mib']) for life in run['lives']):.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(main(arguments.kills, arguments.seed))
