"""Run the whole of `perfgate scheduler` on equal arms, again and again, beside a loop that keeps one core busy.

    python -m benchmarks.scheduler.equal TIMES [PYTHON]

Each run is a line of equal.jsonl: the answer, what was lost, seconds, and how far apart the parts' instructions were. PYTHON
has the engine and serves both arms. Predicted before the first: nothing is lost, and nine in ten take less than 180 s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.scheduler.run import count_cpu_s, keep_busy, list_lost, measure_distance
from perfgate.resolution.arms import find_source
from perfgate.scheduler.ask import measure_arms
from perfgate.scheduler.judge import compare_work

RUNS = Path(__file__).with_name("equal.jsonl")


def run(python: str) -> dict[str, Any]:
    """One comparison, as a line of the results."""
    source = find_source(python, python, option="PYTHON")
    load, begun, used = os.getloadavg()[0], time.monotonic(), os.times()
    base, candidate = measure_arms(source, source)
    took_s = time.monotonic() - begun
    found = compare_work(base, candidate, {})
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sglang": base.version,
        "load_before": round(load, 1),
        "wall_s": round(took_s, 1),
        "cpu_s": count_cpu_s(used),
        "answer": found.answer.value,
        "lost": list_lost(found),
        "unverified": len(found.unverified),
        "apart": round(measure_distance(base, candidate), 5),
    }


def main() -> int:
    """So many runs, each stored as soon as it is there."""
    times, python = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else sys.executable
    for _ in range(times):
        with keep_busy(is_busy=True):
            line = json.dumps(run(python))
        with RUNS.open("a", encoding="utf-8") as file:
            print(line, file=file)
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
