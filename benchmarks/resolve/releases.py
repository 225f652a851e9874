"""Compare each release of SGLang with the one before, and 0.5.23 with itself under other Tritons.

    python -m benchmarks.resolve.releases [VERSION ...]

Each release is read once; a pair is a comparison of two readings. Needs the package index once, torch and transformers, no GPU.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from perfgate.resolution.arms import find_source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.diff import compare
from perfgate.resolution.report import write_document, write_lines
from perfgate.resolution.table import GPUS, MODELS
from perfgate.resolution.values import Resolution

RELEASES = (
    *("0.5.13", "0.5.14", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
ON = ("h20", "h200", "b200")
TRITONS = ("3.6.0", "3.7.1")
RESULTS = Path(__file__).with_name("results")


def read_release(version: str, triton: str = "") -> tuple[Resolution, dict[str, float]]:
    """What a release resolves to for every model, and the seconds that it took: by the clock, and of all cores."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    source = find_source(version, sys.executable, option="--base", triton=triton)
    (resolution,) = ask_arms([source], list(MODELS.values()), [GPUS[name] for name in ON])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return resolution, {"wall_s": round(time.monotonic() - began, 1), "cpu_s": round(cpu_s, 1)}


def write_pair(name: str, base: Resolution, candidate: Resolution) -> None:
    """One comparison: its lines, and its document without the readings."""
    comparison = compare(base, candidate, {})
    document: dict[str, Any] = write_document(comparison)
    choices = {arm: document[arm].pop("choices") for arm in ("base", "candidate")}
    document["tables"] = {
        arm: {case: {"moe_tiles": one.get("moe_tiles")} for case, one in rows.items()} for arm, rows in choices.items()
    }
    document["lines"] = list(write_lines(comparison))
    (RESULTS / f"{name}.json").write_text(json.dumps(document, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Read the releases in order, and compare each with the one before as soon as both are there."""
    RESULTS.mkdir(exist_ok=True)
    releases = sys.argv[1:] or RELEASES
    seconds, before = {}, None
    for version in releases:
        resolution, seconds[version] = read_release(version)
        print(version, seconds[version], flush=True)
        if before is not None:
            write_pair(f"{before[0]}-{version}", before[1], resolution)
        before = (version, resolution)
        (RESULTS / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
    if before is not None and before[0] == RELEASES[-1]:
        for triton in TRITONS:
            other, seconds[f"{before[0]} under Triton {triton}"] = read_release(before[0], triton)
            write_pair(f"{before[0]}-triton-{triton}", other, before[1])
        (RESULTS / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "tables.json").write_text(json.dumps(count_tables(before[0]), indent=1) + "\n", encoding="utf-8")


def count_tables(version: str) -> dict[str, int]:
    """Files of a release's tables for an H200, by the Triton that they were tuned for."""
    folder = find_source(version, sys.executable, option="--base").folder or Path()
    configs = folder / "sglang/srt/layers/moe/moe_runner/triton_utils/configs"
    found = sorted(configs.glob("triton_*"), key=lambda one: [int(part) for part in one.name.split("_")[1:]])
    return {
        one.name.removeprefix("triton_").replace("_", "."): len(list(one.glob("*device_name=NVIDIA_H200*.json")))
        for one in found
    }


if __name__ == "__main__":
    main()
