"""Measure the waiting between windows for real: perfgate's worker against one process for each run, at the same server.

    python -m benchmarks.idle_share.live --windows 6 --out benchmarks/idle_share/cpu.json

One server of the CPU scenario is started; `--scenario` and `--model` choose another, a GPU's too. First the worker drives it,
as a session does: cache flushed, telemetry on, result stored. Then `python -m sglang.bench_serving` is started for each window
with the same arguments. The shares depend on how long a window's load is, the seconds on what else the machine does; the CPU
seconds that the load generator spends on a window depend on neither.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.idle_share.shares import Idle, Stay, summarize
from perfgate.core import Arm, Role
from perfgate.engines.table import ENGINES
from perfgate.machine.fingerprint import read_fingerprint
from perfgate.readers.bench_serving import read_window
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.load import Load
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import WORKER, Client, build_argv
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.model.location import locate_model
from perfgate.serving.progress import PlainProgress
from perfgate.serving.watch.telemetry import Telemetry, open_monitor
from perfgate.serving.window import Bench
from perfgate.storage.journal import WindowFiles

# Discarded: the first windows of a server compile and fill caches.
WARMUP = 2
PEER = ("-m", "sglang.bench_serving")


def main() -> None:
    """Measure both ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="cpu-moe")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--peer-windows", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = describe_machine() | compare_ways(options)
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def compare_ways(options: argparse.Namespace) -> dict[str, Any]:
    """Drive one server both ways, and tell of it."""
    scenario = load_scenario(options.scenario)
    progress = PlainProgress()
    model = locate_model(scenario.model, options.model, progress)
    with TemporaryDirectory(prefix="perfgate-") as folder, serve(scenario, model, Path(folder)) as (server, reaper):
        ours = drive_worker(scenario, server, reaper, Path(folder), options.windows)
        peer = drive_processes(scenario.load, server, Path(folder), options.peer_windows)
    print(describe(ours, peer))
    return {"scenario": scenario.name, "worker": asdict(ours), "process_per_run": asdict(peer)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """Windows that were taken one way: how the server waited, and the CPU seconds of the load generator for each."""

    idle: Idle
    cpu_s: float


@contextmanager
def serve(scenario: Scenario, model: Path, folder: Path) -> Iterator[tuple[Server, Reaper]]:
    """Start one server of the scenario and wait until it generates."""
    reaper = Reaper()
    try:
        with Server(ArmSpec().build_launch(scenario, model), folder / "server.log", reaper) as server:
            server.wait_ready()
            yield server, reaper
    finally:
        reaper.close()


def drive_worker(scenario: Scenario, server: Server, reaper: Reaper, folder: Path, windows: int) -> Driven:
    """Take windows as a session does and sum up those behind the warm-up."""
    engine = ENGINES[scenario.server.engine]
    telemetry = Telemetry(folder, open_monitor([server.launch]))
    files = WindowFiles(folder)
    stays = []
    with telemetry, Client(sys.executable, engine, folder / "client.log", reaper) as client:
        client.wait_ready_once()
        spent_s: list[float] = []
        bench = Bench(client=client, telemetry=telemetry, read_clock=time.monotonic)
        for index in range(WARMUP + windows):
            place = {"arm": Arm.BASE, "block": 1, "start": 1, "index": index, "role": Role.MEASURED}
            taken = bench.take(server, scenario.load, place)
            name, _ = files.add(taken.raw)
            load_s = taken.read(folder / name).duration_s or 0.0
            stays.append(Stay(begun_s=taken.facts["begun_s"], ended_s=taken.facts["ended_s"], load_s=load_s))
            spent_s.append(read_spent())
    return Driven(idle=summarize([stays[WARMUP:]]), cpu_s=(spent_s[-1] - spent_s[WARMUP - 1]) / windows)


def read_spent() -> float:
    """The CPU seconds that the worker has spent so far."""
    workers = [child for child in psutil.Process().children() if str(WORKER) in child.cmdline()]
    return sum(sum(worker.cpu_times()[:2]) for worker in workers)


def drive_processes(load: Load, server: Server, folder: Path, windows: int) -> Driven:
    """Start a load generator for each window, the cache flushed before. The worker's import has warmed the disk's cache."""
    stays = []
    env = {**os.environ, **server.launch.engine.env, "PYTHONWARNINGS": "ignore"}
    before = getrusage(RUSAGE_CHILDREN)
    for index in range(windows):
        output = folder / f"peer-{index}.jsonl"
        server.flush_cache()
        begun_s = time.monotonic()
        argv = [sys.executable, *PEER, *build_argv(load, server.launch.model, server.url, output)]
        subprocess.run(argv, env=env, check=True, capture_output=True)
        ended_s = time.monotonic()
        stays.append(Stay(begun_s=begun_s, ended_s=ended_s, load_s=read_window(output).duration_s or 0.0))
    after = getrusage(RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Driven(idle=summarize([stays]), cpu_s=spent_s / windows)


def describe_machine() -> dict[str, Any]:
    """Where and when, and how busy the machine was."""
    facts = read_fingerprint().facts
    return {
        "begun_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": {name: facts[name] for name in ("hardware", "sglang", "torch", "python")},
        "load_average": os.getloadavg(),
    }


def describe(ours: Driven, peer: Driven) -> str:
    """Both ways in a few lines."""
    lines = [
        f"{name:18} {way.idle.share:5.1%} of the measured part idle; a window: {way.idle.load_s:.2f} s load, "
        f"{way.idle.preparing_s:.2f} s preparing it, {way.idle.between_s:.2f} s between; {way.cpu_s:.2f} s of CPU"
        for name, way in (("worker", ours), ("one process a run", peer))
    ]
    ratio = peer.idle.waiting_s / ours.idle.waiting_s
    return "\n".join([*lines, f"one process a run waits {ratio:.1f} times as long"])


if __name__ == "__main__":
    main()
