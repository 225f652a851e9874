"""What a written checkpoint of gpt-oss-20b's size costs a machine: writing it once, and reading it at each start of a server.

Usage: python -m benchmarks.checkpoint FOLDER [--gib 12.8] [--out benchmarks/checkpoint.json]
Weights that a plug-in draws in the server are the other way; their time is in servers' logs (`weights_s`). FOLDER takes
files of 2 GiB by safetensors, which go again. They are read once with the kernel's copies dropped, and the last one again
from memory, times the number of files. Nothing is converted and no GPU is copied to, so a server takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

GIB = 2**30
SHARD_GIB = 2.0
TENSOR_BYTES = 2**28


def write_shards(folder: Path, gib: float) -> list[Path]:
    """Write `gib` GiB as tensors of 256 MiB, several to a file. All hold the same random bytes: drawing them is not writing."""
    folder.mkdir(parents=True, exist_ok=True)
    piece = torch.frombuffer(bytearray(os.urandom(TENSOR_BYTES)), dtype=torch.uint8)
    each = round(SHARD_GIB * GIB / TENSOR_BYTES)
    count = round(gib * GIB / TENSOR_BYTES)
    paths: list[Path] = []
    for begin in range(0, count, each):
        paths.append(folder / f"shard-{len(paths):02d}.safetensors")
        save_file({f"part-{number}": piece.clone() for number in range(begin, min(begin + each, count))}, paths[-1])
    return paths


def settle(paths: Sequence[Path]) -> None:
    """Wait until the files are on the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def forget(paths: Sequence[Path]) -> None:
    """Drop the kernel's copies of the files."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_shards(paths: Sequence[Path]) -> None:
    """Read every byte, file by file, as a server does that fills its parameters."""
    for path in paths:
        for tensor in load_file(path).values():
            tensor.clone()


def measure(act: Callable[[], object]) -> float:
    """Seconds that `act` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def study(folder: Path, gib: float) -> dict[str, float]:
    """Seconds of each step, and what was written in GiB."""
    paths: list[Path] = []

    def write() -> None:
        paths.extend(write_shards(folder, gib))
        settle(paths)

    try:
        write_s = measure(write)
        forget(paths)
        cold_s = measure(lambda: read_shards(paths))
        # As many as the memory surely keeps.
        warm_s = measure(lambda: read_shards(paths[-1:])) * len(paths)
        written = sum(path.stat().st_size for path in paths) / GIB
    finally:
        for path in folder.glob("shard-*.safetensors"):
            path.unlink()
    return {"gib": written, "write_s": write_s, "read_cold_s": cold_s, "read_warm_s": warm_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=12.8, help="of an arm in MXFP4; 36.4 in bf16")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    found = {name: round(value, 2) for name, value in study(given.folder, given.gib).items()}
    facts = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }
    given.out.write_text(json.dumps(facts | found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts | found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
