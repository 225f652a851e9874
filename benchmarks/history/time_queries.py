"""Time questions to a store, each in a process of its own: wall clock, and the processor time that it took.

A question in Python is timed from the store's files to series with their changes. A command is timed whole, with Python's start
and all imports, as a person waits for it.

    python benchmarks/history/time_queries.py STORE [--repeats 5] > benchmarks/history/results.json

On a machine that others use, the wall clock says how busy they were; processor time and the fastest of the repeats say what the
question costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from perfgate.machine.fingerprint import read_cpu
from perfgate.metrics import METRICS

QUESTIONS = {
    "the command as people type it: headline metrics, newest 400 sessions of each of 8 series": "Question()",
    f"one scenario on one machine, all {len(METRICS)} metrics": (
        "Question(scenarios=('closed-c16',), hardware=('nvidia-h20-96gb',), metrics=tuple(METRICS))"
    ),
    "throughput of every session there is": "Question(metrics=('output_tok_per_s',), last=0)",
}
COMMANDS = {
    "the process `perfgate history show --store STORE`": ["history", "show"],
    "the process `perfgate history show --store STORE --format json`": ["history", "show", "--format", "json"],
}
# From the store's files to series with their changes; importing the packages is not part of it.
CODE = """
import json, sys, time
from perfgate.history.database import Question
from perfgate.history.query import ask
from perfgate.history.store import Store
from perfgate.metrics import METRICS
wall, cpu = time.perf_counter(), time.process_time()
found = ask(Store(sys.argv[1]), {question}).series
print(json.dumps({{
    "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
    "series": len(found), "points": sum(len(one.points) for one in found), "changes": sum(len(one.changes) for one in found),
}}))
"""
COUNT = """
import duckdb, sys
print(duckdb.sql("SELECT count(*) FROM read_parquet('" + sys.argv[1] + "/windows/**/*.parquet')").fetchall()[0][0])
"""


def run(code: str, store: Path) -> str:
    return subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True).stdout


def time_question(question: str, store: Path, repeats: int) -> dict[str, object]:
    runs = [json.loads(run(CODE.format(question=question), store)) for _ in range(repeats)]
    times = [name for name in runs[0] if name.endswith("_s")]
    facts = {name: value for name, value in runs[0].items() if name not in times}
    return {**facts, **{name: [round(one[name], 3) for one in runs] for name in times}}


def time_command(words: list[str], store: Path, repeats: int) -> dict[str, list[float]]:
    """Time a command from its start to its end, after one run that warms the file cache; what it prints is thrown away."""
    argv = [sys.executable, "-m", "perfgate", *words, "--store", str(store)]
    wall_s, cpu_s = [], []
    for turn in range(repeats + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if turn:
            wall_s.append(round(time.perf_counter() - began, 3))
            cpu_s.append(round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3))
    return {"wall_s": wall_s, "cpu_s": cpu_s}


def describe_store(store: Path) -> dict[str, int]:
    files = list(store.rglob("*.parquet"))
    return {"windows": int(run(COUNT, store)), "files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    results = {
        "machine": {**read_cpu(), "python": platform.python_version(), "load_average": os.getloadavg()},
        "versions": {name: version(name) for name in ("apache-otava", "duckdb", "numpy", "pyarrow")},
        "stores": {
            store.name: {
                **describe_store(store),
                "questions": {name: time_question(question, store, given.repeats) for name, question in QUESTIONS.items()},
                "commands": {name: time_command(words, store, given.repeats) for name, words in COMMANDS.items()},
            }
            for store in given.stores
        },
    }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
