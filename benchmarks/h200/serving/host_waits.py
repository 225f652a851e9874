"""What the GPU waits for on the host when a full server is slow, and which placing of processes on cores ends it.

    python -m benchmarks.h200.serving.host_waits SCENARIO --seconds 1300 --out FOLDER [--model FOLDER] [--caches DIR]
    python -m benchmarks.h200.serving.host_waits --show FOLDER...

One warm server, beside an idle one where the scenario's blocks have both, is driven window after window under arms by turns:

- `plain`: as a session runs it;
- `pinned`: the scheduler's main thread, its other threads, detokenizer, tokenizer, load generator and telemetry on cores of
  their own, all else on the first one;
- `alone`: the scheduler's main thread on a core whose physical core nobody else may use;
- `quiet`: nothing watches, neither the engine's metrics nor NVML;
- `frozen`: the idle server is stopped by a signal.

FOLDER gets `host-waits.jsonl`: a line of facts, then a line for each window with what each group of threads did in each second
and the scheduler's main thread in each tenth. The sampler keeps to the last core under all arms. The load generator does not
say when its load began: the detokenizer's last activity is taken for the end of the load. A freed thread may stay where it was
pinned, so neighbours in the order differ from round to round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.h200.serving.host_threads import MAIN, Roles, Sampler, find_roles, list_tasks
from benchmarks.h200.serving.host_waits_table import describe
from perfgate.core import Arm, Role, Run
from perfgate.engines.table import ENGINES
from perfgate.errors import EvidenceError, PerfgateError
from perfgate.machine.folder_lock import lock_folder
from perfgate.machine.processes import signal_session
from perfgate.readers.bench_serving import read_fields, read_window
from perfgate.readers.request_details import Details, parse_details
from perfgate.runner.setup.topology import group_cores
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server, wait_all_ready
from perfgate.serving.measure import raise_on_signals
from perfgate.serving.model.location import locate_model
from perfgate.serving.progress import Progress, show_progress
from perfgate.serving.watch.gpu_processes import Ticker
from perfgate.serving.watch.telemetry import Telemetry, open_monitor
from perfgate.serving.window import Bench
from perfgate.storage.journal import append_line
from perfgate.verdict.validity.pairing import Watched, fix_rules, is_warm, may_discard

FILE = "host-waits.jsonl"
ARMS = ("plain", "pinned", "alone", "quiet", "frozen")
TOLD = ("output_tok_per_s", "median_itl_ms", "p99_itl_ms", "mean_ttft_ms")
PERIOD_S = 0.1
STOP_S = 25.0
"""What is left at the end for two servers to stop in."""
PARTS = ("", MAIN, "scheduler", "detokenizer", "tokenizer", "client", "gate")
"""What gets a physical core of its own, the first for all the rest."""


def order_arms(arms: Sequence[str], number: int) -> list[str]:
    """The arms of a round: each begins one later, and every other round goes backwards, so that drift cancels."""
    turned = [*arms[number % len(arms) :], *arms[: number % len(arms)]]
    return turned if number % 2 == 0 else turned[::-1]


def plan_cores(groups: Sequence[Sequence[int]], arm: str) -> dict[str, set[int]]:
    """The CPUs of each part under an arm; the scheduler's main thread is a part, and "" all that is not named.

    `groups` are the CPUs of each physical core. The last is the sampler's; with few cores, several parts share one.
    """
    every = {cpu for group in groups for cpu in group}
    pools = [set(group) for group in groups[:-1]] or [every]
    own = pools[1 % len(pools)]
    if arm == "pinned":
        return {part: pools[place % len(pools)] for place, part in enumerate(PARTS)} | {MAIN: {min(own)}}
    return {"": (every - own) or every, MAIN: {min(own)}} if arm == "alone" else {"": every}


def place_threads(roles: Roles, groups: Sequence[Sequence[int]], arm: str) -> None:
    """Move every thread of the processes to the CPUs that it may use under `arm`; one that has ended is left out."""
    places = plan_cores(groups, arm)
    for pid, role in roles.items():
        for tid in list_tasks(pid):
            part = MAIN if role == "scheduler" and tid == pid else role
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, places.get(part, places[""]))


def list_arrivals(details: Details, concurrency: int) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """When the tokens of each request arrived, in seconds of the load, in a closed loop of `concurrency`.

    The next request begins where one ends, as the load generator has it; it writes how long each took, not when it began.
    """
    ends = [0.0] * concurrency
    arrivals = []
    for first_s, gaps in zip(details.ttft_s, np.split(details.itl_s, np.cumsum(details.itl_count)[:-1]), strict=True):
        begun = ends.index(min(ends))
        times = ends[begun] + np.cumsum(np.concatenate(([first_s], gaps)))
        ends[begun] = float(times[-1])
        arrivals.append(times)
    return arrivals


def measure_gaps(arrivals: Sequence[np.ndarray[Any, Any]], step_s: float, count: int) -> list[tuple[float | None, int]]:
    """The median gap in ms, and the number, of the tokens that arrived in each step of the load; None without a token."""
    ends = np.concatenate([times[1:] for times in arrivals])
    gaps = np.concatenate([np.diff(times) for times in arrivals]) * 1e3
    steps = (ends / step_s).astype(np.int64)
    found = [gaps[steps == number] for number in range(count)]
    return [(round(float(np.median(here)), 3) if here.size else None, int(here.size)) for here in found]


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    """One warm server and what takes its windows, each on disk before the next begins."""

    folder: Path
    scenario: Scenario
    bench: Bench
    server: Server
    idle: Server | None
    progress: Progress
    roles: Roles = field(default_factory=dict)
    groups: Sequence[Sequence[int]] = field(default_factory=lambda: group_cores(sorted(os.sched_getaffinity(0))))

    @property
    def arms(self) -> tuple[str, ...]:
        """Those that this scenario can have."""
        return ARMS if self.idle is not None else ARMS[:-1]

    def warm(self) -> list[Watched]:
        """Discard windows as a session does, until two in a row agree."""
        rules, most, watched = fix_rules(self.scenario, {}), self.scenario.warmup.max_discards, list[Watched]()
        while may_discard(watched, rules, most) and not is_warm(watched, rules):
            run, _, readings = self.drive("plain", len(watched))
            watched.append((run, readings))
        self.server.freeze_gc()
        return watched

    def drive(self, arm: str, index: int) -> tuple[Run, Details, dict[str, float]]:
        """Send the load once, and read what came of it."""
        load, readings = self.scenario.load, dict[str, float]()
        if arm == "quiet":
            self.server.flush_cache()
            raw = self.bench.client.measure(load, self.server.launch.model, self.server.url)
        else:
            place = {"arm": Arm.BASE, "block": 1, "start": 1, "index": index, "role": Role.MEASURED}
            taken = self.bench.take(self.server, load, place)
            raw, readings = taken.raw, dict(taken.facts["telemetry"])
        path = self.folder / "window.jsonl"
        path.write_bytes(raw)
        details = parse_details(read_fields(path), str(path))
        if details is None:
            raise EvidenceError(f"{path}: holds no times of single requests")
        return read_window(path), details, readings

    def take(self, arm: str, number: int, index: int) -> None:
        """One window under `arm`, and its line."""
        place_threads(self.roles, self.groups, arm)
        monitor = None if arm == "quiet" else open_monitor([self.server.launch])
        sampler = Sampler(roles=self.roles, monitor=monitor, groups=self.groups)
        ticker = Ticker(sampler.read, PERIOD_S)
        ticker.start()
        try:
            with self.freeze(arm):
                run, details, readings = self.drive(arm, index)
        finally:
            ticker.stop()
            if monitor is not None:
                monitor.close()
        line = {"arm": arm, "round": number, "index": index, "values": {name: run.values.get(name) for name in TOLD}}
        line |= {"telemetry": readings, "lost": len(ticker.failures), **self.describe(sampler, run, details)}
        append_line(self.folder / FILE, line)
        self.progress.step(
            f"{index:3} {arm:7} {run.values['output_tok_per_s']:9.1f} tok/s {run.values['median_itl_ms']:7.2f} ms"
        )

    @contextlib.contextmanager
    def freeze(self, arm: str) -> Iterator[None]:
        """Keep the idle server stopped while the body runs, where the arm says so."""
        leaders = self.idle.leaders if self.idle is not None and arm == "frozen" else ()
        try:
            for leader in leaders:
                signal_session(leader, signal.SIGSTOP)
            yield
        finally:
            for leader in leaders:
                signal_session(leader, signal.SIGCONT)

    def describe(self, sampler: Sampler, run: Run, details: Details) -> dict[str, Any]:
        """What the threads did in each second and tenth of the load, beside what its clients saw."""
        length_s = run.duration_s or 0.0
        begun = sampler.find_end("detokenizer main") - length_s
        arrivals = list_arrivals(details, self.scenario.load.max_concurrency)
        seconds, tenths = int(length_s), int(length_s / PERIOD_S)
        gaps = measure_gaps(arrivals, 1.0, seconds)
        told = sampler.tell(np.arange(seconds + 1.0) + begun)
        fine = sampler.tell_main(np.arange(tenths + 1.0) * PERIOD_S + begun)
        return {
            "load_s": round(length_s, 3),
            "lead_s": round(begun - sampler.begun, 3),
            "seconds": [{"itl_ms": gap, "tokens": count, **one} for (gap, count), one in zip(gaps, told, strict=True)],
            "tenths": [[*one, gap] for one, (gap, _) in zip(fine, measure_gaps(arrivals, PERIOD_S, tenths), strict=True)],
        }


def diagnose(found: Diagnosis, ends: float) -> None:
    """Take whole rounds as long as one more fits before `ends`."""
    watched = found.warm()
    found.roles = find_roles(found.server, found.idle)
    launch = found.server.launch
    facts: dict[str, Any] = {
        "scenario": found.scenario.name,
        "workload_hash": found.scenario.workload_hash,
        "argv": launch.argv(0),
    }
    facts |= {"groups": [list(group) for group in found.groups], "roles": sorted(found.roles.values()), "arms": found.arms}
    warm = [run.values.get("median_itl_ms") for run, _ in watched]
    append_line(found.folder / FILE, {**facts, "ready_s": round(found.server.ready_s, 1), "warm_itl_ms": warm})
    longest_s, number = 0.0, 0
    while time.monotonic() + longest_s + STOP_S < ends:
        begun = time.monotonic()
        for turn, arm in enumerate(order_arms(found.arms, number)):
            found.take(arm, number, number * len(found.arms) + turn)
        longest_s, number = max(longest_s, time.monotonic() - begun), number + 1
    place_threads(found.roles, found.groups, "plain")


def measure(options: argparse.Namespace, ends: float) -> None:
    """Start the servers and diagnose the first."""
    scenario, folder = load_scenario(options.scenario), options.out.resolve()
    with contextlib.ExitStack() as stack:
        lock, progress = stack.enter_context(lock_folder(folder)), stack.enter_context(show_progress())
        stack.enter_context(raise_on_signals())
        model = locate_model(scenario.model, options.model, progress)
        reaper = stack.enter_context(Reaper(lock))
        specs = [ArmSpec(caches=options.caches and options.caches.resolve() / arm.value) for arm in Arm]
        launches = [spec.build_launch(scenario, model) for spec in specs[: 2 if scenario.blocks.resident == "both" else 1]]
        telemetry = stack.enter_context(Telemetry(folder, open_monitor(launches)))
        engine = ENGINES[scenario.server.engine]
        client = stack.enter_context(Client(specs[0].python, engine, folder / "client.log", reaper))
        servers = [Server(launch, folder / f"server-{place}.log", reaper) for place, launch in enumerate(launches)]
        for server in servers:
            stack.enter_context(telemetry.guard(server))
            stack.enter_context(server)
        wait_all_ready(servers, lambda _, waited_s: progress.wait(f"servers loading, {waited_s:.0f} s"))
        for server in servers:
            telemetry.note_ready(server)
        client.wait_ready_once()
        bench = Bench(client=client, telemetry=telemetry, read_clock=time.monotonic)
        idle = servers[1] if len(servers) > 1 else None
        diagnose(
            Diagnosis(folder=folder, scenario=scenario, bench=bench, server=servers[0], idle=idle, progress=progress), ends
        )


def read_text(folder: Path) -> str:
    """What a folder's file holds, packed by `xz` or not."""
    file = folder / FILE
    return file.read_text(encoding="utf-8") if file.exists() else lzma.open(f"{file}.xz", "rt", encoding="utf-8").read()


def main(arguments: Sequence[str]) -> int:
    """Measure, then print the tables; or print those of what was measured."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?")
    parser.add_argument("--seconds", type=float, default=1300.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--caches", type=Path)
    parser.add_argument("--show", type=Path, nargs="+", metavar="FOLDER")
    options = parser.parse_args(arguments)
    if not options.show and not (options.scenario and options.out):
        parser.error("give a scenario and --out, or --show")
    if not options.show:
        measure(options, begun + options.seconds)
    texts = map(read_text, options.show or [options.out])
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    print(describe([line for line in lines if "arm" in line]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PerfgateError as error:
        sys.exit(f"host_waits: {error}")
