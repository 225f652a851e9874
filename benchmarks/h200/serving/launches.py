"""How a kernel was launched in each arm's profile, and how long a model's worth of its launches takes.

    python benchmarks/h200/serving/launches.py RESULT_DIR NAME [LAYERS]

Launches whose name holds NAME, by start and by their grid and block of threads; the time is the mean of a launch times LAYERS
(24, as gpt-oss-20b has), so that of one decode step, or of one prefill.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

LAYERS = 24


def main(folder: Path, name: str, layers: int) -> None:
    print("| start | grid | block | launches | us a pass |\n|:--|:--|:--|--:|--:|")
    for trace in sorted((folder / "profiles").glob("start-*/*.trace.json.gz")):
        for (grid, block), times_us in sorted(find_launches(trace, name).items()):
            print(f"| {trace.parent.name} | {grid} | {block} | {len(times_us)} | {layers * mean(times_us):.1f} |")


def find_launches(trace: Path, name: str) -> dict[tuple[int, int], list[float]]:
    """Microseconds of each launch, by the first sizes of grid and block."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]:
        if name in event.get("name", "") and "grid" in event.get("args", {}):
            found[event["args"]["grid"][0], event["args"]["block"][0]].append(event["dur"])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else LAYERS)
