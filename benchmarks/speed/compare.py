"""Time `perfgate check`, the page and `perfgate --help` against a plain pandas script and an empty interpreter.

Usage: python -m benchmarks.speed.compare [--repeats 7] [--folder DIR]
Wall time is what a person waits; on a busy machine the processor time says what the program costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.make_folder import write_folder

RESULT = Path(__file__).parent / "results.json"
LIMITS_S = {"perfgate check": 2.0, "perfgate --help": 0.3}


def time_once(argv: Sequence[str]) -> tuple[float, float]:
    """Wall and processor seconds of one run; its output is thrown away and its exit code is not judged."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def list_commands(folder: Path, page: Path) -> dict[str, list[str]]:
    """What is timed, by the name it has in the table; `page` is where the HTML report goes."""
    perfgate = [sys.executable, "-m", "perfgate"]
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "perfgate --help": [*perfgate, "--help"],
        "import pandas, scipy.stats": [sys.executable, "-c", "import pandas, scipy.stats"],
        "perfgate check": [*perfgate, "check", str(folder)],
        "perfgate report --html": [*perfgate, "report", str(folder), "--html", str(page)],
        "pandas and scipy.stats script": [sys.executable, str(Path(__file__).parent / "peer.py"), str(folder)],
    }


def measure(folder: Path, page: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Take turns over all commands, so that a busy minute touches each; the first round warms the file cache."""
    commands = list_commands(folder, page)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, argv in commands.items():
            sample = time_once(argv)
            if turn:
                found[name].append(sample)
    return {
        name: {
            "wall_median_s": round(statistics.median(wall for wall, _ in samples), 3),
            "wall_min_s": round(min(wall for wall, _ in samples), 3),
            "cpu_median_s": round(statistics.median(cpu for _, cpu in samples), 3),
        }
        for name, samples in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="a folder from make_folder; default: one made for the occasion")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "run"
        if given.folder is None:
            write_folder(folder)
        load_before = os.getloadavg()[0]
        page = Path(scratch) / "page.html"
        times = measure(folder, page, given.repeats)
        page_bytes = page.stat().st_size
    facts = {"cores": os.cpu_count(), "load_before": round(load_before, 2), "load_after": round(os.getloadavg()[0], 2)}
    made = {"command": "python -m benchmarks.speed.compare", "python": platform.python_version(), **facts}
    found = {"made": made, "limits_s": LIMITS_S, "page_bytes": page_bytes, "times": times}
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    peer, empty = times["pandas and scipy.stats script"], times["python -c pass"]
    for name, one in times.items():
        limit = f"limit {LIMITS_S[name]:g} s" if name in LIMITS_S else ""
        ratio = f"{one['wall_median_s'] / peer['wall_median_s']:.2f} of the script, "
        ratio += f"{one['wall_median_s'] / empty['wall_median_s']:.0f} x empty"
        print(f"{name:30} wall {one['wall_median_s']:.3f} s, processor {one['cpu_median_s']:.3f} s  ({ratio})  {limit}")
    print(f"load {facts['load_before']} to {facts['load_after']} on {facts['cores']} cores; written to {RESULT}")


if __name__ == "__main__":
    main()
