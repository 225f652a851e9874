"""One server, looked at by SGLang's own expert recorder: which experts a scenario's load reaches, how fast the model loads.

    python -m benchmarks.h200.campaign.recorder SCENARIO --out FOLDER [--model FOLDER] [--caches DIR] [--windows N] [--plain]

A cross-check of what a session measures of expert use by itself, and what compiles the kernels that later sessions find in the
cache. FOLDER gets the server's log and `recorder.json`. With --plain the server runs without SGLang's recorder, which
turns some kinds of prefill graphs off, and the windows are all that is told.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx

from perfgate.engines.table import ENGINES
from perfgate.errors import PerfgateError
from perfgate.machine.folder_lock import lock_folder
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.engine.startup import read_phases
from perfgate.serving.measure import raise_on_signals
from perfgate.serving.model.location import locate_model
from perfgate.serving.progress import show_progress

VARIABLE = "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"
MARKERS = ("perfgate", "Load weight", "graph", "moe_runner_backend", "Using default MoE", "compil")
TIMEOUT_S = 60.0
KEPT_LINES = 60
TOLD = ("output_throughput", "duration", "median_itl_ms", "p99_itl_ms", "median_ttft_ms")


def describe_layers(steps: Sequence[Sequence[Sequence[int]]]) -> list[dict[str, float]]:
    """What each layer's counts say, from counts by step, layer and expert.

    `effective` is the exponential of the entropy of the load, `imbalance` the largest load over the mean one, `distinct` the
    mean number of experts that one step reached.
    """
    return [_describe([step[layer] for step in steps]) for layer in range(len(steps[0]))]


def _describe(steps: Sequence[Sequence[int]]) -> dict[str, float]:
    totals = [sum(counts) for counts in zip(*steps, strict=True)]
    shares = [count / sum(totals) for count in totals if count]
    return {
        "experts": len(totals),
        "used": len(shares),
        "effective": round(exp(-sum(share * log(share) for share in shares)), 2),
        "imbalance": round(max(shares) * len(totals), 2),
        "distinct": round(mean(sum(map(bool, counts)) for counts in steps), 2),
    }


def read_steps(folder: Path, top_k: int) -> dict[str, list[list[list[int]]]]:
    """Counts by step, layer and expert that the recorder wrote: all steps, and those of up to 64 tokens, which decode."""
    import torch

    [path] = folder.glob("expert_distribution_recorder_*.pt")
    counts = torch.load(path, weights_only=False)["logical_count"].cpu()
    counts = counts[counts.sum(dim=(1, 2)) > 0]
    tokens = counts.sum(dim=(1, 2)) / counts.shape[1] / top_k
    # Sixty-four at most are in flight, and a prompt has more tokens than that.
    return {"all": counts.tolist(), "decode": counts[tokens <= 64].tolist()}


def measure(client: Client, server: Server, scenario: Scenario, windows: int) -> Iterator[dict[str, float]]:
    """Send the load so often and tell of each window what bench_serving told, and how long it took with the rest."""
    for _ in range(windows):
        begun = time.monotonic()
        raw = json.loads(client.measure(scenario.load, server.launch.model, server.url))
        found = {name: raw[name] for name in TOLD if name in raw}
        server.flush_cache()
        yield {**found, "wall_s": round(time.monotonic() - begun, 2)}


def record(server: Server, client: Client, scenario: Scenario, folder: Path, windows: int) -> dict[str, Any]:
    """Warm the server by `windows` windows, then record one, and tell of it all."""
    warm = list(measure(client, server, scenario, windows))
    ask(server, "start_expert_distribution_record")
    recorded = list(measure(client, server, scenario, 1))
    ask(server, "stop_expert_distribution_record")
    ask(server, "dump_expert_distribution_record")
    steps = read_steps(folder, scenario.model.top_k)
    return {
        "windows": warm,
        "recorded": recorded,
        "steps": {name: len(found) for name, found in steps.items()},
        "layers": {name: describe_layers(found) for name, found in steps.items() if found},
    }


def ask(server: Server, what: str) -> None:
    """Call one of the recorder's endpoints."""
    httpx.post(f"{server.url}/{what}", timeout=TIMEOUT_S).raise_for_status()


def summarise(layers: Sequence[dict[str, float]]) -> str:
    """One line of the layers' medians, and of the worst."""
    names = ("used", "effective", "imbalance", "distinct")
    told = ", ".join(f"{name} {median(layer[name] for layer in layers):g}" for name in names)
    fewest = min(layer["used"] for layer in layers)
    return f"{len(layers)} layers of {layers[0]['experts']:g} experts: {told}; fewest used {fewest:g}"


def main(arguments: Sequence[str]) -> int:
    """Start the server, record, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--caches", type=Path)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="without SGLang's recorder: windows alone")
    options = parser.parse_args(arguments)
    scenario = load_scenario(options.scenario)
    folder = options.out.resolve()
    with lock_folder(folder) as lock, show_progress() as progress, raise_on_signals():
        model = locate_model(scenario.model, options.model, progress)
        spec = ArmSpec(
            args=() if options.plain else ("--expert-distribution-recorder-mode", "stat"),
            env={} if options.plain else {VARIABLE: str(folder)},
            caches=options.caches and options.caches.resolve() / "base",
        )
        launch = spec.build_launch(scenario, model)
        reaper = Reaper(lock)
        found: dict[str, Any] = {"scenario": scenario.name, "workload_hash": scenario.workload_hash, "argv": launch.argv(0)}
        try:
            with (
                Client(spec.python, ENGINES[scenario.server.engine], folder / "client.log", reaper) as client,
                Server(launch, folder / "server.log", reaper) as server,
            ):
                server.wait_ready(lambda waited_s: progress.wait(f"server loading, {waited_s:.0f} s"))
                found |= {"ready_s": round(server.ready_s, 1), **read_phases(launch, server.log)}
                client.wait_ready_once()
                if options.plain:
                    found["windows"] = list(measure(client, server, scenario, options.windows))
                else:
                    found |= record(server, client, scenario, folder, options.windows)
        finally:
            reaper.close()
            lines = (folder / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
            found["log"] = [line[:300] for line in lines if any(word in line for word in MARKERS)][:KEPT_LINES]
            (folder / "recorder.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not options.plain and not found["layers"]:
        print("SGLang's recorder counted no step: the top-k of this MoE runner does not call it")
    for name, layers in found.get("layers", {}).items():
        print(f"{name}: {summarise(layers)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PerfgateError as error:
        sys.exit(f"recorder: {error}")
