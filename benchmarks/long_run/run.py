"""A long session that is killed and resumed at random ends in the verdict of the same windows undisturbed, in flat memory.

    python -m benchmarks.long_run.run [--kills 12] [--seed 1] [--output benchmarks/long_run/results.json]

Six blocks of two starts with 17 windows each: 204 windows, 12 server starts, real processes, the fake engine of the tests in
place of SGLang. The gate is killed at random numbers of lines of its folder and resumed by the same command. A block that was
cut is measured anew, so the folder holds more windows than count. Memory is the gate's resident set, at every tenth window of
a life. Judging at the end of a block loads what it needs, once; after that, flat means flat. `undisturbed.json` was made with
`--kills 0`: one life of 204 windows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from perfgate.baseline_choice import KEPT, match_baseline
from perfgate.check import judge
from perfgate.evidence.results import load_results
from perfgate.verdict_file import format_verdict
from tests.e2e.commands import wait_for_leftovers
from tests.fakes.commands import copy_without_break, count_lines, start_perfgate
from tests.fakes.requests import build_text

WINDOWS, BLOCKS = 15, 6
MIB = 2**20
CHANGES = {
    "calibrate_first = true": "calibrate_first = false",
    "looks = [2, 3, 4, 6]": f"looks = [{BLOCKS}]",
    "windows = 3": f"windows = {WINDOWS}",
    "budget_minutes = 20.0": "budget_minutes = 600.0",
}
# What a session leaves behind a window: its line; around a block: starting, ready, stopping of two servers, the block's end.
LINES_A_BLOCK = 2 * (2 + WINDOWS) + 7


def main(kills: int, seed: int, output: Path) -> None:
    """Run, kill, resume, compare, and write down what was found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenario.toml").write_text(build_text(**CHANGES))
        begun = time.monotonic()
        lives = list(live_through(folder, draw_kills(kills, seed)))
        found = {**describe(folder), "lives": lives, "seed": seed, "took_s": round(time.monotonic() - begun, 1)}
    output.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "lives"}, indent=2))
    for life in lives:
        print(life)


def draw_kills(count: int, seed: int) -> list[int]:
    """How many lines each life may add before it is killed: up to a block and a half, so that the session gets on."""
    draw = random.Random(seed)  # noqa: S311 - a seed is the point
    return [draw.randrange(1, LINES_A_BLOCK * 3 // 2) for _ in range(count)]


def live_through(folder: Path, kills: list[int]) -> Any:
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
            "said": [line for line in err.splitlines() if "going on after" in line],
            "memory_mib": memory,
        }


def watch(process: Popen[str], out: Path, last: int | None) -> list[list[float]]:
    """Follow the gate's memory until it ends or has written `last` lines, and kill it there.

    Pairs of windows measured by this life and MiB, one for every ten windows.
    """
    gate, before, seen = psutil.Process(process.pid), count_windows(out), {}
    while process.poll() is None:
        windows = count_windows(out) - before
        memory = read_memory(gate)
        if windows and memory:
            seen.setdefault(windows // 10 * 10, [windows, round(memory, 1)])
        if last is not None and count_lines(out) >= last:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    return list(seen.values())


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
    scenario, whole = load_results(undisturbed)
    verdict = judge(whole, scenario, match_baseline((undisturbed / KEPT,), scenario, whole))
    places = Counter((window.block, window.arm, window.index) for window in session.windows)
    return {
        "outcome": json.loads((out / "verdict.json").read_bytes())["outcome"],
        "equals_undisturbed": format_verdict(verdict) == (out / "verdict.json").read_bytes(),
        "windows": len(session.windows),
        "server_starts_that_count": len({window.start for window in session.windows}),
        "windows_superseded": len(session.superseded),
        "counted_twice": [str(place) for place, count in places.items() if count > 1],
        "problems": list(session.problems),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    arguments = parser.parse_args()
    main(arguments.kills, arguments.seed, arguments.output)
