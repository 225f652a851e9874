"""Slow live servers down on purpose and compare what their logs say they spent with what the load generator saw.

    python benchmarks/h200/serving/slow_downs.py RESULTS_DIR MODEL_DIR

needs an NVIDIA GPU of 141 GB, a Python with SGLang, the shape of make_model.py, and perfgate's plug-in (`perfgate kernels
plug-in FOLDER`, FOLDER on PYTHONPATH). It writes told.json, telemetry.jsonl.gz and logs in about three minutes. The last window
runs beside a process that does not belong to the session and keeps the GPU busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from perfgate.engines.table import ENGINES
from perfgate.readers.bench_serving import read_window
from perfgate.scenario.load import Load
from perfgate.serving.client import Client
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.injection.injection import VARIABLE
from perfgate.serving.injection.injection_log import MEASURED, PROOF, read_injected_us
from perfgate.serving.watch.telemetry import Telemetry, describe_monitor, open_monitor

INJECTIONS = {"gpu": "gpu:10", "host": "host:500"}
LOAD = Load(num_prompts=64, input_len=512, output_len=192, max_concurrency=16, timeout_s=60.0)
ARGS = (
    *("--load-format", "dummy", "--moe-runner-backend", "triton", "--attention-backend", "triton"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-prefill-cuda-graph"),
    *("--cuda-graph-max-bs-decode", "64", "--max-total-tokens", "65536"),
)
KEPT = ("median_itl_ms", "mean_itl_ms", "p99_itl_ms", "output_tok_per_s", "mean_e2e_ms")

# The spin kernel without a server: what is asked for, what it counts as spent, what CUDA events say that a call takes.
ALONE = """
import json, torch
from perfgate.serving.injection.spin import Spin
from perfgate.serving.injection.spin import CALLS, SPENT
rows = []
for asked in (0.001, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0):
    one = Spin(device="cuda", index=0, microseconds=asked)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(240):
            one.enqueue()
    times = []
    for _ in range(5):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record(); graph.replay(); ended.record(); torch.cuda.synchronize()
        times.append(begun.elapsed_time(ended) * 1000 / 240)
    state = one._state.cpu()
    rows.append(dict(asked_us=asked, spent_us=int(state[SPENT]) / 1000 / int(state[CALLS]), calls=int(state[CALLS]),
                     overhead_us=one.overhead_us, event_us=times))
print(json.dumps(rows))
"""
FOREIGN = """
import sys, time, torch
sys.stdin.readline()
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
print("on", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""


@dataclass(slots=True)
class Trial:
    """Everything that one run of this script holds open."""

    out: Path
    model: Path
    reaper: Reaper
    telemetry: Telemetry
    client: Client
    told: list[dict[str, Any]]
    begun: float = field(default_factory=time.monotonic)

    def say(self, text: str, **facts: Any) -> None:
        """Note a step, on the screen and on disk."""
        self.told.append({"at_s": round(time.monotonic() - self.begun, 1), "step": text, **facts})
        print(self.told[-1], flush=True)
        (self.out / "told.json").write_text(json.dumps(self.told, indent=1) + "\n", encoding="utf-8")

    def wait(self, server: Server) -> None:
        """Wait for a server and tell the telemetry that its processes are there."""
        server.wait_ready()
        self.telemetry.note_ready()
        self.say("ready", log=server.log.name, after_s=round(server.ready_s, 1))

    def measure(self, server: Server, name: str, index: int) -> Mapping[str, float]:
        """One window: what the load generator and the telemetry say."""
        server.flush_cache()
        with self.telemetry.watch(server, {"arm": name, "index": index}) as watch:
            raw = self.client.measure(LOAD, self.model, server.url)
        path = self.out / "window.jsonl"
        path.write_bytes(raw)
        values = read_window(path).values
        path.unlink()
        kept = {key: round(values[key], 4) for key in KEPT}
        self.say("window", arm=name, index=index, values=kept, telemetry=watch.readings, failure=watch.failure)
        return values

    def compare(self, base: Server, slow: Server, name: str, rounds: int) -> None:
        """Alternate windows after one each to warm; hold what was spent against what was seen."""
        arms = ((base, f"base-{name}"), (slow, name))
        seen: dict[str, list[float]] = {label: [] for _, label in arms}
        for index in range(rounds + 1):
            for server, label in arms if index % 2 else arms[::-1]:
                values = self.measure(server, label, index)
                if index:
                    seen[label].append(values["median_itl_ms"])
        before, after = (median(values) for values in seen.values())
        log = slow.log.read_text(encoding="utf-8", errors="replace")
        spent_us = read_injected_us([slow.log])
        self.say(
            "compared",
            injection=INJECTIONS[name],
            base_median_itl_ms=before,
            slowed_median_itl_ms=after,
            seen_ratio=after / before - 1,
            injected_us_per_step=spent_us,
            injected_ratio=None if spent_us is None else spent_us / (1000 * before),
            proof=PROOF in log,
            lines=[line.partition(MEASURED)[2] for line in log.splitlines() if MEASURED in line][-4:],
        )


def build_server(out: Path, model: Path, name: str, fraction: str, reaper: Reaper) -> Server:
    launch = Launch(
        engine=ENGINES["sglang"],
        python=sys.executable,
        model=model,
        args=(*ARGS, "--mem-fraction-static", fraction),
        env={VARIABLE: INJECTIONS[name]} if name in INJECTIONS else {},
        ready_timeout_s=150.0,
        stop_timeout_s=20.0,
    )
    return Server(launch, out / f"server-{name}.log", reaper)


def run_trial(trial: Trial, base: Server, foreign: subprocess.Popen[str]) -> None:
    telemetry = trial.telemetry
    with telemetry.guard(base), base:
        slow = build_server(trial.out, trial.model, "gpu", "0.75", trial.reaper)
        with telemetry.guard(slow), slow:
            trial.wait(base)
            trial.wait(slow)
            trial.client.wait_ready_once()
            trial.compare(base, slow, "gpu", 3)
        slow = build_server(trial.out, trial.model, "host", "0.75", trial.reaper)
        with telemetry.guard(slow), slow:
            trial.wait(slow)
            trial.compare(base, slow, "host", 2)
        if foreign.stdin is not None and foreign.stdout is not None:
            foreign.stdin.write("go\n")
            foreign.stdin.flush()
            foreign.stdout.readline()
        trial.measure(base, "beside-a-foreign-process", 0)
        foreign.kill()
        foreign.wait()
    trial.say("all servers stopped, their memory is free")


def main(out: Path, model: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    alone = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=120)
    rows = json.loads(alone.stdout.splitlines()[-1]) if alone.returncode == 0 else alone.stderr[-800:]
    reaper = Reaper()
    foreign = subprocess.Popen([sys.executable, "-c", FOREIGN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        base = build_server(out, model, "base", "0.42", reaper)
        monitor = open_monitor([base.launch])
        client = Client(sys.executable, ENGINES["sglang"], out / "client.log", reaper)
        with Telemetry(out, monitor) as telemetry, client:
            trial = Trial(out=out, model=model, reaper=reaper, telemetry=telemetry, client=client, told=[])
            trial.say("the spin kernel alone", rows=rows)
            trial.say(describe_monitor(monitor))
            run_trial(trial, base, foreign)
    finally:
        foreign.kill()
        reaper.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
