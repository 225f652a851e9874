"""Seed one change at a time into a copy of 0.5.23, and compare each copy with the release.

    python -m benchmarks.resolve.seeds

Each change must be found by one line, equal trees must have none. Needs the package index once, torch, transformers, no GPU.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.resolution.arms import find_source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.diff import compare
from perfgate.resolution.report import write_lines
from perfgate.resolution.table import GPUS, MODELS

RELEASE = "0.5.23"
SHAPES = ("qwen3-30b", "deepseek-v3")
ON = ("h20", "h200", "b200")
RESULTS = Path(__file__).with_name("results")
SRT = "sglang/srt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A change of one kind: `before` becomes `after` in files that match, which are removed where `after` is None."""

    name: str
    files: str
    before: str = ""
    after: str | None = None
    key: str = ""


SEEDS = (
    Seed(name="nothing changed", files=f"{SRT}/arg_groups/fields/schedule.py", before="", after=""),
    Seed(
        name="table removed",
        files=f"{SRT}/layers/moe/moe_runner/triton_utils/configs/triton_*/E=128,N=768,device_name=NVIDIA_H200.json",
        key="moe_tiles",
    ),
    Seed(
        name="default flipped",
        files=f"{SRT}/arg_groups/fields/schedule.py",
        before='] = "fcfs"',
        after='] = "lpm"',
        key="flag schedule_policy",
    ),
    Seed(
        name="fused path not taken",
        files=f"{SRT}/arg_groups/overrides.py",
        before="_FLASHINFER_ALLREDUCE_FUSION_ARCHS)\n        and not prefer_custom_dsv41",
        after="_FLASHINFER_ALLREDUCE_FUSION_ARCHS)\n        and prefer_custom_dsv41",
        key="all_reduce",
    ),
    Seed(
        name="pool cut by 3 %",
        files=f"{SRT}/mem_cache/kv_cache_configurator.py",
        before="return int(rest_memory * (1 << 30))",
        after="return int(rest_memory * 0.97 * (1 << 30))",
        key="pool_tokens",
    ),
)


def plant(seed: Seed, release: Path, folder: Path) -> Path:
    """A copy of the release with one change; files that are not changed are links to the same bytes."""
    shutil.copytree(release, folder, copy_function=os.link)
    for file in find_files(seed, folder):
        text = file.read_text(encoding="utf-8")
        file.unlink()
        if seed.after is not None:
            if text.count(seed.before) != 1 and seed.before:
                raise SystemExit(f"{seed.name}: {file} has {text.count(seed.before)} times {seed.before!r}")
            file.write_text(text.replace(seed.before, seed.after) if seed.before else text, encoding="utf-8")
    return folder


def find_files(seed: Seed, folder: Path) -> Iterator[Path]:
    """The files of a seed; SystemExit where there is none."""
    found = sorted(folder.glob(seed.files))
    if not found:
        raise SystemExit(f"{seed.name}: no {seed.files} in {folder}")
    yield from found


def run(seed: Seed, made: Path) -> dict[str, Any]:
    """Both arms as `perfgate resolve` asks them, the lines of the comparison, and what it took."""
    base = find_source(RELEASE, sys.executable, option="--base")
    tree = plant(seed, base.folder or made, made / seed.name.replace(" ", "-"))
    candidate = find_source(str(tree), sys.executable, option="--candidate")
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    arms = ask_arms([base, candidate], [MODELS[name] for name in SHAPES], [GPUS[name] for name in ON])
    wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    comparison = compare(arms[0], arms[1], {})
    keys = [one.key for one in comparison.differences]
    return {
        "lines": list(write_lines(comparison)),
        "answer": comparison.answer.value,
        "is_found": keys == ([seed.key] if seed.key else []),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "load": [round(one, 1) for one in os.getloadavg()],
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> int:
    """Every seed; exit code 1 where one was not found by exactly one line."""
    RESULTS.mkdir(exist_ok=True)
    found = {}
    store = find_source(RELEASE, sys.executable, option="--base").folder
    with tempfile.TemporaryDirectory(dir=store and store.resolve().parent) as made:  # links need one file system
        for seed in SEEDS:
            found[seed.name] = run(seed, Path(made))
            print(seed.name, json.dumps(found[seed.name], indent=1), flush=True)
            (RESULTS / "seeds.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["is_found"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
