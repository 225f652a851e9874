"""How often a fresh compile cache chooses another setting for the same kernel, and what that costs; needs a GPU and SGLang.

    python -m benchmarks.tuned_choices.draw --draws 12 --at-once 2 --out benchmarks/h200/kernels/tuned-choices.json

Each draw is a process with an empty cache. It calls gpt-oss's activation, SGLang's `swiglu_gpt_oss_sigmoid_alpha`, at the sizes
that a server captures for decoding, largest first, and then at the size of a prefill. torch.compile keeps a file for each
kernel that it chose a setting for. Then, with nothing else on the GPU, each different set of choices is timed three times, by
turns: a CUDA graph of 24 calls, a layer each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from perfgate.kernels.card import describe_device
from perfgate.serving.arms import list_caches
from perfgate.serving.tuned_choices import PATTERN, TIMES

TOP_K, WIDTH, LAYERS = 4, 2880, 24
DECODE = (16, 12, 8, 4, 2, 1)
PREFILL = 8192
TIMED = (16, PREFILL)
ROUNDS = 40
ME = (sys.executable, "-m", "benchmarks.tuned_choices.draw")


def main() -> None:
    """Draw, time each different draw, and print how often each came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=2, help="as many servers compile side by side")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        print(json.dumps(time_here()))
        return
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(number) for number in range(options.draws)]
        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(call, places))
        drawn = {place: read_choices(place / "inductor") for place in places}
        first = {describe(choices): place for place, choices in reversed(drawn.items())}
        times_us: dict[str, list[dict[str, float]]] = {name: [] for name in first}
        for _ in range(3):
            for name, place in first.items():
                times_us[name].append(call(place))
    often = Counter(map(describe, drawn.values()))
    report = {
        **describe_device(),
        "command": [*ME[1:], *sys.argv[1:]],
        "draws": [describe(choices) for choices in drawn.values()],
        "times_us": times_us,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, count in often.most_common():
        told = ", ".join(f"{median(one[key] for one in times_us[name]):.2f} us at {key} tokens" for key in map(str, TIMED))
        print(f"{count} of {options.draws} caches: {told}; {name}")


def call(place: Path) -> dict[str, float]:
    """Compile in a process whose caches lie in `place`, and time: microseconds a call by number of tokens."""
    done = subprocess.run(
        [*ME, "--time"], env={**os.environ, **list_caches(place)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"a draw failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def time_here() -> dict[str, float]:
    """Compile as a server does, then time the activation at TIMED tokens."""
    import torch
    from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import swiglu_gpt_oss_sigmoid_alpha

    from perfgate.kernels.timing import replay_ms

    inputs = {
        tokens: torch.randn(tokens * TOP_K, 2 * WIDTH, device="cuda", dtype=torch.bfloat16) for tokens in (*DECODE, PREFILL)
    }
    for one in inputs.values():
        for _ in range(2):
            swiglu_gpt_oss_sigmoid_alpha(one, 1.702, 7.0)
    torch.cuda.synchronize()
    found = {}
    for tokens in TIMED:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(LAYERS):
                swiglu_gpt_oss_sigmoid_alpha(inputs[tokens], 1.702, 7.0)
        replay_ms(graph, 20)
        found[str(tokens)] = median(replay_ms(graph, 10) for _ in range(ROUNDS)) * 1000 / LAYERS
    return found


def read_choices(folder: Path) -> dict[str, Any]:
    """What a compiler chose, by the name of its file, without the times in it."""
    chosen = {path.name[:8]: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob(PATTERN))}
    return {name: {key: value for key, value in one.items() if key not in TIMES} for name, one in chosen.items()}


def describe(choices: dict[str, Any]) -> str:
    """A set of choices in a line: block and warps of each kernel."""
    words = [f"{name} XBLOCK={one.get('XBLOCK')} warps={one.get('num_warps')}" for name, one in sorted(choices.items())]
    return "; ".join(words) or "no choice"


if __name__ == "__main__":
    main()
