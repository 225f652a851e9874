"""Result folders of every kind and outcome, made of numbers, for pages that show them."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace

from perfgate.core import Arm
from perfgate.results.matrix import MATRIX_LAYOUT, MatrixRecord
from perfgate.results.profiling.profiles import Profile, store_profile
from perfgate.results.readings import READINGS
from perfgate.results.records import ArmRecord
from perfgate.results.writer import ResultWriter
from tests.fakes.recorded import ROOT, SLOWER
from tests.fakes.sessions import FACTS, change_window, make_line, make_run, make_scenario, make_session, write_folder
from tests.faults.recording import copy_unpacked

SURVEY = ROOT / "benchmarks/h200/kernels/gpt-oss-20b.json"
HOSTILE = "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>\" onload=\"alert(3) \u202e 'x' & ]]> <!--"
ABSURD = (0.0, 1e-300, 1e-9, 5.0, 1e15, 1e300, 1e308)
KERNELS = {
    Arm.BASE: {"fused_moe_kernel": 300, "moe_sum_reduce": 6, "attention": 20},
    Arm.CANDIDATE: {"fused_moe_kernel": 418, "attention": 20, f"void cutlass<{HOSTILE}>": 2},
}


def write_profiled(folder: Path) -> Path:
    """A regression that was measured on an H200, with made profiles of both arms."""
    copy_unpacked(SLOWER, folder)
    add_profiles(folder)
    return folder


def add_profiles(folder: Path) -> None:
    """Profiles of both arms, taken in servers of their own after the verdict."""
    for start, (arm, kernels) in enumerate(KERNELS.items(), 5):
        trace = folder / "profiles" / f"start-{start:02d}" / "1.trace.json.gz"
        trace.parent.mkdir(parents=True)
        events = [
            {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * step + 50 * place, "dur": us, "pid": 0, "tid": 7, "args": {}}
            for step in range(4)
            for place, (name, us) in enumerate(kernels.items())
        ]
        trace.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
        store_profile(folder, Profile(arm=arm, block=0, start=start, steps=4), [trace])


def write_faster(folder: Path) -> Path:
    """A clear gain."""
    return write_folder(folder, make_session(make_scenario(), worse=-0.08, blocks=3))


def write_failed(folder: Path) -> Path:
    """A session with a window whose requests failed: INVALID."""
    return write_folder(folder, change_window(make_session(make_scenario()), 3, completed=399))


def write_hostile(folder: Path) -> Path:
    """A session whose every text is an attack."""
    session = make_session(make_scenario(), worse=0.08, blocks=3)
    write_folder(folder, session)
    path = folder / "session.json"
    record = json.loads(path.read_text())
    for arm in record["arms"].values():
        arm |= {"label": HOSTILE, "argv": ["python", f"--{HOSTILE}", HOSTILE], "env": {HOSTILE: HOSTILE}, "python": HOSTILE}
        arm["facts"] |= {"gpu": HOSTILE, HOSTILE: HOSTILE}
    path.write_text(json.dumps(record))
    scenario = folder / "scenario.toml"
    scenario.write_text(scenario.read_text().replace('"A scenario of the unit tests"', f"'''{HOSTILE}'''"))
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "problem", "at_s": 1.0, "message": HOSTILE}) + "\n")
    (folder / "logs" / "server <img src=x onerror=alert(4)> #?.log").write_text(HOSTILE)
    return folder


def write_absurd(folder: Path, seed: int) -> Path:
    """A session whose numbers are none that a machine could give; their digests are right."""
    write_folder(folder, make_session(make_scenario()))
    draw, index = random.Random(seed), folder / "windows.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    for line in lines:
        line |= {"begun_s": draw.choice(ABSURD[:-3]), "ended_s": draw.choice(ABSURD[:-3])}
        line["telemetry"] = {name: draw.choice((*ABSURD, -1.0)) for name in READINGS}
        file = folder / line["file"]
        window = json.loads(gzip.decompress(file.read_bytes()))
        window |= {name: draw.choice(ABSURD) for name in ("output_throughput", "median_itl_ms", "p99_itl_ms")}
        window |= {"ttfts": [draw.choice((0.0, 1e10)) for _ in range(400)], "output_lens": [3] * 400}
        window["itls"] = [[draw.choice((0.0, 1e-12, 1e10)) for _ in range(2)] for _ in range(400)]
        raw = gzip.compress(json.dumps(window).encode())
        file.write_bytes(raw)
        line["sha256"] = hashlib.sha256(raw).hexdigest()
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_matrix(folder: Path) -> Path:
    """Two servers under two loads in two rounds; one cell failed."""
    text = (Path(__file__).parent / "matrix.toml").read_text()
    started = {name: ArmRecord(label=name, python="python", argv=(), env={}, facts=FACTS) for name in ("plain", "slowed")}
    named = {"perfgate": "test", "name": "backends", "begun_utc": "2026-01-01T00:00:00Z"}
    record = MatrixRecord(schema=1, **named, servers=started, model={})
    writer = ResultWriter.create(folder, record, text, MATRIX_LAYOUT)
    draw, clock = random.Random(1), 0.0
    for number in (1, 2):
        for place, (server, slow) in enumerate((("plain", 1.0), ("slowed", 2.0))):
            for load, level in (("closed", 900.0), ("paced", 300.0)):
                if (number, server, load) == (2, "slowed", "paced"):
                    writer.add_event("cell_failed", clock, round=number, server=server, load=load, message=f"died: {HOSTILE}")
                    continue
                for index, role in enumerate(("warmup", "measured", "measured")):
                    tokens = level / slow * draw.gauss(1, 0.01)
                    values = {"output_tok_per_s": tokens, "median_itl_ms": 9000 / tokens, "p99_itl_ms": 2e4 / tokens}
                    run = make_run(values | {"mean_itl_ms": 9000 / tokens, "mean_e2e_ms": 1e5 / tokens}, "x", 8)
                    cell = {"round": number, "server": server, "load": load, "start": 2 * number - 1 + place, "index": index}
                    times = {"begun_s": clock, "ended_s": clock + run.duration_s + 0.1}
                    writer.add_window(make_line(SimpleNamespace(run=run)), role=role, **cell, **times)
                    clock = times["ended_s"] + 1.0
                writer.add_event("cell_ended", clock, round=number, server=server, load=load)
    writer.add_event("matrix_ended", clock)
    return folder


def write_timings(folder: Path, *, slower: float = 0.0) -> Path:
    """Four blocks of layer timings, as pytest-benchmark stores them."""
    facts = {"device": "NVIDIA H200", "torch": "2.11.0", "base": "sglang", "candidate": HOSTILE}
    folder.mkdir()
    for block in range(4):
        draw = random.Random(block)
        benchmarks = []
        for tokens, level in ((1, 60.0), (64, 180.0), (4096, 1600.0)):
            samples = {
                side: [level * ratio * draw.gauss(1, 0.002) for _ in range(30)]
                for side, ratio in (("base", 1.0), ("again", 1.0), ("candidate", 1 + slower))
            }
            extra = {"format": 1, "shape": "gpt-oss-20b", "tokens": tokens, "samples_us": samples, "floor_us": level / 2}
            benchmarks.append({"name": str(tokens), "extra_info": {"perfgate": extra}})
        content = {"datetime": f"2026-11-21T10:0{block}:00", "machine_info": {"perfgate": facts}, "benchmarks": benchmarks}
        (folder / f"{block:04}_block.json").write_text(json.dumps(content))
    return folder
