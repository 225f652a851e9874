"""Write a result folder of the size that a full gate leaves behind: 48 windows with about a million raw inter-token latencies.

Usage: python -m benchmarks.speed.make_folder OUT
The numbers are drawn from a seeded generator; only their amount and their format are those of a measurement.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from perfgate import __version__
from perfgate.core import Arm, Role
from perfgate.results.records import ArmRecord, SessionRecord
from perfgate.results.writer import ResultWriter
from perfgate.scenario.schema import Scenario, parse_scenario

BLOCKS, WINDOWS = 6, 4  # 6 blocks x 2 arms x 4 windows = 48, the first window of each start being warm-up
REQUESTS, OUTPUT_TOKENS, INPUT_TOKENS, CONCURRENCY = 328, 65, 512, 16  # 328 x 64 = 20,992 inter-token latencies a window
WINDOW_S = 12.0

SCENARIO = f"""schema = 1
name = "speed-check"
title = "A generated folder that times `perfgate check`"

[model]
path = "generated:none"
architecture = "Qwen3MoeForCausalLM"
experts = 8
top_k = 2
layers = 4
weights = "random"

[server]
engine = "sglang"

[load]
num_prompts = {REQUESTS}
input_len = {INPUT_TOKENS}
output_len = {OUTPUT_TOKENS}
max_concurrency = {CONCURRENCY}

[gates.output_tok_per_s]
[gates.p99_itl_ms]
[gates.median_itl_ms]
[gates.mean_itl_ms]
[gates.es5_itl_ms]
[gates.mean_ttft_ms]
[gates.mean_e2e_ms]
"""


def make_window(rng: np.random.Generator, seed: int) -> bytes:
    """One line as bench_serving writes it with --output-details; latencies in seconds, as there."""
    itl = 0.007 * np.exp(rng.normal(0.0, 0.05, (REQUESTS, OUTPUT_TOKENS - 1)) + 0.004 * rng.standard_normal())
    ttft = 0.030 * np.exp(rng.normal(0.0, 0.2, REQUESTS))
    e2e = ttft + itl.sum(axis=1)
    duration = float(e2e.sum() / CONCURRENCY)
    line: dict[str, Any] = {
        "backend": "sglang",
        "dataset_name": "random-ids",
        "num_prompts": REQUESTS,
        "seed": seed,
        "request_rate": float("inf"),
        "max_concurrency": CONCURRENCY,
        "sharegpt_output_len": None,
        "random_input_len": INPUT_TOKENS,
        "random_output_len": OUTPUT_TOKENS,
        "random_range_ratio": 1.0,
        "duration": duration,
        "completed": REQUESTS,
        "total_input_tokens": REQUESTS * INPUT_TOKENS,
        "total_output_tokens": REQUESTS * OUTPUT_TOKENS,
        "total_output_tokens_retokenized": REQUESTS * OUTPUT_TOKENS,
        "request_throughput": REQUESTS / duration,
        "input_throughput": REQUESTS * INPUT_TOKENS / duration,
        "output_throughput": REQUESTS * OUTPUT_TOKENS / duration,
        "total_throughput": REQUESTS * (INPUT_TOKENS + OUTPUT_TOKENS) / duration,
        **summarise("e2e_latency", e2e),
        **summarise("ttft", ttft),
        **summarise("tpot", itl.mean(axis=1)),
        **summarise("itl", itl.ravel()),
        "concurrency": float(CONCURRENCY),
        "input_lens": [INPUT_TOKENS] * REQUESTS,
        "output_lens": [OUTPUT_TOKENS] * REQUESTS,
        "ttfts": ttft.tolist(),
        "itls": itl.tolist(),
        "generated_texts": ["x" * 4 * OUTPUT_TOKENS] * REQUESTS,
        "errors": [""] * REQUESTS,
    }
    return json.dumps(line).encode() + b"\n"


def summarise(name: str, seconds: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """The summary fields of one quantity in milliseconds, named as bench_serving names them."""
    found = {
        f"{label}_{name}_ms": float(of(seconds)) * 1e3
        for label, of in (("mean", np.mean), ("median", np.median), ("std", np.std))
    }
    return found | {f"p{q}_{name}_ms": float(np.percentile(seconds, q)) * 1e3 for q in (90, 95, 99)}


def make_record(scenario: Scenario) -> SessionRecord:
    """A session header in which both arms ran the same way on the same, invented, hardware."""
    facts = {"hardware": "generated", "gpu": "none", "driver": "none", "sglang": "none", "python": "none"}
    arms = {arm: ArmRecord(label=arm.value, python="python", argv=(), env={}, facts=facts) for arm in Arm}
    return SessionRecord(
        schema=1,
        perfgate=__version__,
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        purpose="ab",
        begun_utc="2026-01-01T00:00:00Z",
        arms=arms,
        model={},
    )


def write_folder(folder: Path, seed: int = 1) -> int:
    """Write the folder and return the number of inter-token latencies in it."""
    scenario = parse_scenario(SCENARIO, "make_folder.py")
    writer = ResultWriter.create(folder, make_record(scenario), SCENARIO)
    rng = np.random.default_rng(seed)
    clock_s, start = 0.0, 0
    for block in range(1, BLOCKS + 1):
        for arm in (Arm.BASE, Arm.CANDIDATE) if block % 2 else (Arm.CANDIDATE, Arm.BASE):
            start += 1
            for index in range(WINDOWS):
                writer.add_window(
                    make_window(rng, scenario.load.seed),
                    arm=arm,
                    block=block,
                    start=start,
                    index=index,
                    role=Role.WARMUP if index == 0 else Role.MEASURED,
                    begun_s=clock_s,
                    ended_s=clock_s + WINDOW_S,
                )
                clock_s += WINDOW_S + 1.0
    writer.add_event("session_ended", clock_s)
    return 2 * BLOCKS * WINDOWS * REQUESTS * (OUTPUT_TOKENS - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    count = write_folder(parser.parse_args().out)
    print(f"wrote {2 * BLOCKS * WINDOWS} windows with {count} inter-token latencies")


if __name__ == "__main__":
    main()
