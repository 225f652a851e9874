"""Sessions of a made-up past: a number a day, as an import would have entered it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from perfgate.history.entries import SessionRows
from perfgate.history.imports.past import ForeignNumber, PastRun, enter_past
from perfgate.history.trends import Provenance, SeriesPoint

BEGIN = datetime(2026, 1, 1, 3, tzinfo=UTC)
FACTS = {"hardware": "test-gpu-80gb", "driver": "570", "torch": "2.9", "sglang": "0.5.15"}


def make_past(day: int, value: float, *, others: tuple[ForeignNumber, ...] = (), **changes) -> PastRun:
    told = {"commit": f"{day:07x}", "runner": "", "release": "", **changes.pop("told", {})}
    fields = {
        "origin": "bench_serving",
        "source": f"day-{day}.jsonl",
        "scenario": "nightly",
        "hardware": "test-gpu-80gb",
        "at": BEGIN + timedelta(days=day),
        "provenance": Provenance(**told),
        "workload": {"dataset": "random"},
        "values": {"output_tok_per_s": value, "p99_itl_ms": 30_000 / value},
        "others": others,
    }
    return PastRun(**{**fields, **changes})


def make_entry(day: int, value: float, **changes) -> SessionRows:
    return enter_past(make_past(day, value, **changes))


def draw_levels(levels, each: int = 20, noise: float = 0.004, seed: int = 1) -> list[float]:
    """`each` noisy values of every level, one level after the other."""
    draw = random.Random(seed)
    return [level * (1 + draw.gauss(0, noise)) for level in levels for _ in range(each)]


def make_points(values, **columns) -> list[SeriesPoint]:
    """One point a day; `columns` give commit, runner, release or environment of each."""
    return [
        SeriesPoint(
            **{
                "session": f"{day:016x}",
                "at": BEGIN + timedelta(days=day),
                "value": value,
                "commit": f"{day:07x}",
                "runner": "",
                "release": "",
                "environment": FACTS,
                **{name: column[day] for name, column in columns.items()},
            }
        )
        for day, value in enumerate(values)
    ]
