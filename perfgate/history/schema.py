"""The tables of a history store: their columns, and the version that every row carries.

`scenario`, `hardware` and `month` are partitions: they stand in a file's path, not in the file. A column that is added later is
null in older files; one that changes its meaning needs a new SCHEMA.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from perfgate.metrics import METRICS

SCHEMA = 1
WINDOWS = "windows"
VERDICTS = "verdicts"
OVERRIDES = "overrides"

PLACES = ("repository", "pull_request", "run")
"""Where a session is found on a forge; older files lack them."""

_TIME = pa.timestamp("us", tz="UTC")
_FACTS = pa.map_(pa.string(), pa.string())
_SESSION = (
    ("schema", pa.int16()),
    ("session", pa.string()),
    # Who measured: perfgate itself, or the tool whose output was imported.
    ("origin", pa.string()),
    # aa, ab, alone (a candidate without a base) or import.
    ("kind", pa.string()),
    ("workload", pa.string()),
    ("begun", _TIME),
    ("runner", pa.string()),
)
# A number that is no metric of perfgate's own table; `better` is higher, lower or unknown.
_OTHER = pa.struct((("name", pa.string()), ("unit", pa.string()), ("better", pa.string()), ("value", pa.float64())))
_JUDGEMENT = pa.struct(
    (
        ("metric", pa.string()),
        ("outcome", pa.string()),
        ("gating", pa.bool_()),
        *((name, pa.float64()) for name in ("base", "candidate", "change", "low", "high", "margin", "smallest_effect")),
    )
)


@cache
def build_schema(table: str) -> pa.Schema:
    """The Arrow schema of one of the three tables."""
    return pa.schema({WINDOWS: _windows, VERDICTS: _verdicts, OVERRIDES: _overrides}[table]())


def _windows() -> tuple[tuple[str, pa.DataType], ...]:
    """A row for each window. Only `judged` ones count: the others warmed up, stalled or belong to an INVALID session."""
    return (
        *_SESSION,
        ("commit", pa.string()),
        ("arm", pa.string()),
        ("block", pa.int32()),
        ("start", pa.int32()),
        ("position", pa.int32()),
        ("role", pa.string()),
        ("judged", pa.bool_()),
        ("requested", pa.int32()),
        ("completed", pa.int32()),
        ("duration_s", pa.float64()),
        ("problems", pa.int32()),
        *((name, pa.float64()) for name in METRICS),
        ("others", pa.list_(_OTHER)),
        ("telemetry", pa.map_(pa.string(), pa.float64())),
    )


def _verdicts() -> tuple[tuple[str, pa.DataType], ...]:
    """A row for each session: its verdict, what it cost, and what it ran on. `outcome` is empty where nothing was judged."""
    return (
        *_SESSION,
        ("commit", pa.string()),
        ("base_commit", pa.string()),
        ("release", pa.string()),
        *((name, pa.string()) for name in PLACES),
        ("source", pa.string()),
        ("perfgate", pa.string()),
        ("rule", pa.string()),
        ("outcome", pa.string()),
        ("advisory", pa.bool_()),
        ("blocks", pa.int32()),
        ("windows", pa.int32()),
        ("machine_s", pa.float64()),
        ("reasons", pa.list_(pa.string())),
        ("environment", _FACTS),
        ("candidate_environment", _FACTS),
        ("judgements", pa.list_(_JUDGEMENT)),
    )


def _overrides() -> tuple[tuple[str, pa.DataType], ...]:
    """A row for each verdict that a person overruled: `ruling` is "false alarm" or "accepted"."""
    return (
        ("schema", pa.int16()),
        ("session", pa.string()),
        ("ruled", _TIME),
        ("person", pa.string()),
        ("ruling", pa.string()),
        ("reason", pa.string()),
    )
