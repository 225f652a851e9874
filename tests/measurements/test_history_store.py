"""The made store by which questions to a history are timed."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from perfgate.history.schema import build_schema

# Not imported: `benchmarks.history` is the module beside the folder.
MADE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "history" / "make_store.py"))


def test_make_tables__have_the_columns_of_today():
    month = next(MADE["list_partitions"](20_000))

    made = MADE["make_tables"](month, np.random.default_rng(1))

    assert {name: table.schema for name, table in made.items()} == {name: build_schema(name) for name in made}
    assert {name: table.num_rows for name, table in made.items()} == {"windows": 60, "verdicts": 3}
