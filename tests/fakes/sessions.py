"""Sessions made of numbers: what a driver would have written, without a server."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from math import exp
from pathlib import Path

from perfgate.core import Arm, Fingerprint, Role, Run, Window
from perfgate.evidence import Session
from perfgate.gate.baselines import build_baseline
from perfgate.machine.fingerprint import read_build
from perfgate.metrics import METRICS
from perfgate.results.records import ArmRecord, SessionRecord
from perfgate.results.writer import ResultWriter
from perfgate.scenario.schema import Scenario, parse_scenario
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.recorded import Recorded

FACTS = {"hardware": "test-gpu-80gb", "gpu": "Test GPU", "gpu_memory_gib": "80", "sglang": "0.5.15", "driver": "570"}

LEVELS = {"output_tok_per_s": 1000.0, "p99_itl_ms": 30.0, "median_itl_ms": 10.0, "mean_itl_ms": 11.0, "mean_e2e_ms": 900.0}

NOISE = 0.004


SCENARIO_TEXT = """schema = 1
name = "unit"
title = "A scenario of the unit tests"
[model]
path = "somewhere"
architecture = "TestMoE"
experts = 8
top_k = 2
layers = 4
[server]
engine = "sglang"
[load]
num_prompts = 400
input_len = 32
output_len = 32
max_concurrency = 16
[gates.output_tok_per_s]
[gates.p99_itl_ms]
[gates.median_itl_ms]
"""


def make_scenario(**changes) -> Scenario:
    return replace(parse_scenario(SCENARIO_TEXT, "sessions.py"), **changes)


def make_run(values: Mapping[str, float], source: str, requests: int = 400) -> Run:
    return Run(
        source=source,
        values=values,
        workload={"dataset": "random", "rate": "inf"},
        requested=requests,
        completed=requests,
        input_tokens=12800,
        output_tokens=12800,
        duration_s=12800 / values["output_tok_per_s"],
    )


def make_session(
    scenario: Scenario,
    *,
    blocks: int = 2,
    worse: Mapping[str, float] | float = 0.0,
    noise: float = NOISE,
    seed: int = 1,
    arms: tuple[Arm, ...] = tuple(Arm),
    **changes,
) -> Session:
    """A session whose candidate is worse by `worse` on the log scale: every metric alike, or by metric."""
    draw = random.Random(seed)
    slow = dict.fromkeys(LEVELS, worse) if isinstance(worse, float) else worse
    windows, clock, number = [], 0.0, 0
    offset = draw.gauss(0, noise)
    for block in range(1, blocks + 1):
        for arm in arms if block % 2 else arms[::-1]:
            number += 1
            start = offset + draw.gauss(0, noise / 2)
            for index in range(scenario.blocks.windows + 2):
                role = Role.WARMUP if index < 2 else Role.MEASURED
                shift = {name: slow.get(name, 0.0) if arm is Arm.CANDIDATE else 0.0 for name in LEVELS}
                values = {name: _worsen(name, start + draw.gauss(0, noise) + shift[name]) for name in LEVELS}
                run = make_run(values, f"windows/{len(windows):04d}", scenario.load.num_prompts)
                place = {"arm": arm, "block": block, "start": number, "index": index, "role": role}
                length_s = max(20.0, run.duration_s + 1.0)
                windows.append(Window(run=run, begun_s=clock, ended_s=clock + length_s, **place))
                clock += length_s + 1.0
    fields = {
        "source": "results/unit",
        "scenario": scenario.name,
        "workload_hash": scenario.workload_hash,
        "fingerprints": {arm: Fingerprint(facts=FACTS) for arm in arms},
        "windows": tuple(windows),
    }
    return Session(**{**fields, **changes})


def _worsen(name: str, amount: float) -> float:
    return LEVELS[name] * exp(METRICS[name].badness(exp(amount)))


def record(session: Session, day: int = 1, **changes) -> Recorded:
    fields = {
        "session": session,
        "name": f"session-{day:02d}",
        "at": f"2026-01-{day:02d}",
        "commit": f"c{day}",
        "environment": "e",
    }
    return Recorded(**{**fields, **changes})


def make_baseline(scenario: Scenario, *, sessions: int = 12, blocks: int = 2, noise: float = NOISE) -> Baseline:
    """A baseline from A/A sessions, as calibration would have built it."""
    past = [make_session(scenario, blocks=blocks, noise=noise, seed=100 + day, is_aa=True) for day in range(1, sessions + 1)]
    return build_baseline(scenario, Fingerprint(facts=FACTS), [record(session, day) for day, session in enumerate(past, 1)])


def change_window(session: Session, position: int, **changes) -> Session:
    """Replace fields of one window; `values` and other fields of its run are passed on to the run."""
    windows = list(session.windows)
    window = windows[position]
    in_run = {key: changes.pop(key) for key in list(changes) if key in Run.__slots__}
    windows[position] = replace(window, run=replace(window.run, **in_run), **changes)
    return replace(session, windows=tuple(windows))


def slow_both(session: Session, factor: float) -> Session:
    """The same session on an engine that takes `factor` times as long for everything."""
    windows = []
    for window in session.windows:
        values = {
            name: value / factor if name == "output_tok_per_s" else value * factor for name, value in window.run.values.items()
        }
        windows.append(replace(window, run=replace(window.run, values=values, duration_s=window.run.duration_s * factor)))
    return replace(session, windows=tuple(windows))


def scale_candidate(session: Session, factors: Mapping[str, float]) -> Session:
    """Multiply values of every candidate window, as a change of speed or of units would."""
    windows = tuple(
        replace(window, run=replace(window.run, values={k: v * factors.get(k, 1.0) for k, v in window.run.values.items()}))
        if window.arm is Arm.CANDIDATE
        else window
        for window in session.windows
    )
    return replace(session, windows=windows)


def write_folder(folder: Path, session: Session, text: str = SCENARIO_TEXT, at: str = "2026-01-01T00:00:00Z") -> Path:
    """Write a session as a result folder with lines as bench_serving writes them without details."""
    scenario = parse_scenario(text, "sessions.py")
    arms = {
        arm: ArmRecord(label=arm.value, python="python", argv=(), env={}, facts=fingerprint.facts)
        for arm, fingerprint in session.fingerprints.items()
    }
    record = SessionRecord(
        schema=1,
        perfgate=read_build(),
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        purpose="calibration" if session.is_aa else "ab",
        begun_utc=at,
        arms=arms,
        model={},
    )
    writer = ResultWriter.create(folder, record, text)
    writer.add_event("telemetry", 0.0, message="no GPU is watched")
    for window in session.windows:
        places = ("arm", "block", "start", "index", "role", "begun_s", "ended_s", "telemetry")
        writer.add_window(make_line(window), **{place: getattr(window, place) for place in places})
    if session.is_complete:
        writer.add_event("session_ended", 1e6)
    return folder


def make_line(window: Window) -> bytes:
    run = window.run
    names = {"median_itl_ms": "median_itl_ms", "p99_itl_ms": "p99_itl_ms", "mean_itl_ms": "mean_itl_ms"}
    line = {
        "backend": "sglang",
        "dataset_name": "random-ids",
        "request_rate": float("inf"),
        "max_concurrency": 16,
        "random_input_len": 32,
        "random_output_len": 32,
        "random_range_ratio": 1.0,
        "num_prompts": run.requested,
        "duration": run.duration_s,
        "completed": run.completed,
        "total_input_tokens": run.input_tokens,
        "total_output_tokens": run.output_tokens,
        "request_throughput": run.completed / run.duration_s,
        "output_throughput": run.values["output_tok_per_s"],
        "mean_e2e_latency_ms": run.values["mean_e2e_ms"],
        **{theirs: run.values[ours] for ours, theirs in names.items()},
    }
    return json.dumps(line).encode() + b"\n"
