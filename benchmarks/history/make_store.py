"""Make a store of a million windows: three years of a fleet, written as `perfgate history compact` leaves months behind.

    python benchmarks/history/make_store.py STORE [--windows 1000000] [--loose 0]

Four scenarios on two kinds of hardware, eight runners, sessions of 20 windows spread evenly over 36 months; a level that falls
by 3 % halfway, noise of 0.5 % between sessions and windows. `--loose N` writes the newest N sessions a file each, as they lie
before a merge.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from perfgate.core import Better
from perfgate.history.entries import digest
from perfgate.history.schema import PLACES, SCHEMA, VERDICTS, WINDOWS, build_schema
from perfgate.metrics import METRICS

SCENARIOS = ("closed-c16", "decode-only", "prefill-only", "saturation")
HARDWARE = ("nvidia-h100-80gb", "nvidia-h20-96gb")
RUNNERS = 4
FIRST_MONTH = 2024 * 12
MONTHS = 36
PER_SESSION = 20
NOISE = 0.005
LOSS = 0.03
FACTS = [("driver", "580.159.04"), ("cuda", "13.0"), ("torch", "2.11.0"), ("hardware", "")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One month of one scenario on one kind of hardware; `first` counts its sessions from the beginning of the series."""

    scenario: str
    hardware: str
    month: int
    first: int
    sessions: int
    all_sessions: int

    @property
    def folder(self) -> str:
        """Its place below a table."""
        year, month = divmod(self.month, 12)
        return f"scenario={self.scenario}/hardware={self.hardware}/month={year}-{month + 1:02d}"

    @property
    def begin(self) -> datetime:
        """Its first moment."""
        year, month = divmod(self.month, 12)
        return datetime(year, month + 1, 1, tzinfo=UTC)


def list_partitions(windows: int) -> Iterator[Partition]:
    series = len(SCENARIOS) * len(HARDWARE)
    sessions = windows // PER_SESSION // series
    for scenario in SCENARIOS:
        for hardware in HARDWARE:
            edges = [round(sessions * month / MONTHS) for month in range(MONTHS + 1)]
            for month in range(MONTHS):
                yield Partition(
                    scenario=scenario,
                    hardware=hardware,
                    month=FIRST_MONTH + month,
                    first=edges[month],
                    sessions=edges[month + 1] - edges[month],
                    all_sessions=sessions,
                )


def make_tables(partition: Partition, draw: np.random.Generator) -> dict[str, pa.Table]:
    count = partition.sessions
    numbers = partition.first + np.arange(count)
    names = [digest(f"{partition.folder} {number}".encode()) for number in numbers]
    begun = [partition.begin + timedelta(days=28) * (index / max(count, 1)) for index in range(count)]
    commits = [digest(f"commit {number}".encode()) for number in numbers]
    runners = [f"{partition.hardware}-{number % RUNNERS}" for number in numbers]
    levels = np.where(numbers < partition.all_sessions // 2, 1.0, 1.0 - LOSS) * draw.normal(1.0, NOISE, count)
    shared = {
        "schema": [SCHEMA] * count,
        "session": names,
        "origin": ["perfgate"] * count,
        "kind": ["aa"] * count,
        "workload": [digest(partition.scenario.encode())[:12]] * count,
        "begun": begun,
        "runner": runners,
        "commit": commits,
    }
    return {WINDOWS: _make_windows(shared, levels, draw), VERDICTS: _make_verdicts(shared)}


def _make_windows(shared: dict[str, Any], levels: np.ndarray, draw: np.random.Generator) -> pa.Table:
    count = len(levels) * PER_SESSION
    positions = np.tile(np.arange(PER_SESSION), len(levels))
    columns: dict[str, Any] = {
        name: pa.array(values).take(pa.array(np.repeat(np.arange(len(levels)), PER_SESSION))) for name, values in shared.items()
    }
    columns |= {
        "arm": np.where(positions % 2, "candidate", "base"),
        "block": 1 + positions // 10,
        "start": 1 + positions // 5,
        "position": positions % 5,
        "role": np.where(positions % 5 < 2, "warmup", "measured"),
        "judged": positions % 5 >= 2,
        "requested": np.full(count, 400),
        "completed": np.full(count, 400),
        "duration_s": np.full(count, 6.0),
        "problems": np.zeros(count, int),
        "others": [[]] * count,
        "telemetry": [[("sm_clock_mhz", 1980.0), ("power_w", 350.0)]] * count,
    }
    for rank, (name, metric) in enumerate(METRICS.items()):
        value = np.repeat(levels, PER_SESSION) * draw.normal(1.0, NOISE, count)
        columns[name] = (rank + 1) * 100.0 * (value if metric.better is Better.HIGHER else 1 / value)
    return _build(WINDOWS, columns)


def _make_verdicts(shared: dict[str, Any]) -> pa.Table:
    count = len(shared["session"])
    judgement = dict.fromkeys(("base", "candidate", "change", "low", "high", "smallest_effect"))
    judgements = [
        {"metric": name, "outcome": "PASS", "gating": True, "margin": 0.03, **judgement}
        for name in ("output_tok_per_s", "p99_itl_ms")
    ]
    texts = {name: [""] * count for name in ("base_commit", "release", *PLACES, "source", "perfgate", "rule")}
    return _build(
        VERDICTS,
        {
            **shared,
            **texts,
            "outcome": ["PASS"] * count,
            "advisory": [False] * count,
            "blocks": [2] * count,
            "windows": [PER_SESSION] * count,
            "machine_s": [265.0] * count,
            "reasons": [[]] * count,
            "environment": [FACTS] * count,
            "candidate_environment": [FACTS] * count,
            "judgements": [judgements] * count,
        },
    )


def _build(table: str, columns: dict[str, Any]) -> pa.Table:
    schema = build_schema(table)
    arrays = [
        values.cast(field.type) if isinstance(values := columns[field.name], pa.Array) else pa.array(values, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def write_store(root: Path, windows: int, loose: int) -> None:
    draw = np.random.default_rng(1)
    partitions = list(list_partitions(windows))
    newest = [partition for partition in partitions if partition.month == FIRST_MONTH + MONTHS - 1]
    for partition in partitions:
        count = min(partition.sessions, loose // len(newest)) if partition in newest else 0
        for name, table in make_tables(partition, draw).items():
            folder = root / name / partition.folder
            folder.mkdir(parents=True, exist_ok=True)
            rows = PER_SESSION if name == WINDOWS else 1
            kept = table.num_rows - count * rows
            pq.write_table(
                table.slice(0, kept), folder / f"batch-{digest(partition.folder.encode())}.parquet", compression="zstd"
            )
            for index in range(count):
                one = table.slice(kept + index * rows, rows)
                pq.write_table(one, folder / f"{one['session'][0].as_py()}.parquet", compression="zstd")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--loose", type=int, default=0)
    given = parser.parse_args()
    write_store(given.store, given.windows, given.loose)
