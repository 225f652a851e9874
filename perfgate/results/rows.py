"""Windows and runs as tidy rows, one for each number, and the rows as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from math import isnan
from typing import Any

from perfgate.core import Run, Window
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.results.readings import find_kind

Row = Mapping[str, Any]

# Columns in order, with the pandas type that also holds what is absent.
COLUMNS = {
    "session": "string",
    "scenario": "string",
    "workload_hash": "string",
    "hardware": "string",
    "source": "string",
    "arm": "string",
    "block": "Int64",
    "start": "Int64",
    "index": "Int64",
    "role": "string",
    "begun_s": "float64",
    "ended_s": "float64",
    "requested": "Int64",
    "completed": "Int64",
    "input_tokens": "Int64",
    "output_tokens": "Int64",
    "duration_s": "float64",
    "problems": "Int64",
    "kind": "string",
    "metric": "string",
    "unit": "string",
    "better": "string",
    "estimator": "string",
    "value": "float64",
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet takes for a formula."""


def rows_of_sessions(sessions: Iterable[Session]) -> Iterator[Row]:
    """One row for each window and metric, and for each window and telemetry reading (`kind` tells them apart).

    `index`, `block` and `start` place the window in its session; `problems` counts what is wrong with it.
    `docs/how-to/compare.md` shows how to make a frame of them wide.
    """
    return (row for session in sessions for window in session.windows for row in _rows_of_window(session, window))


def rows_of_runs(runs: Iterable[Run]) -> Iterator[Row]:
    """One row for each run and metric, in the same columns; what only a session knows is absent."""
    return (row for run in runs for row in _rows_of_run(run, {}))


def rows_of_cells(windows: Iterable[tuple[str, str, Window]], name: str) -> Iterator[Row]:
    """One row for each window of a matrix, with its server and load, and metric.

    `arm` holds the server, `scenario` the load, `block` the round.
    """
    return (row for place in windows for row in _rows_of_run(place[2].run, {"session": name, **_place_cell(*place)}))


def _place_cell(server: str, load: str, window: Window) -> dict[str, Any]:
    return {"scenario": load, "arm": server, **_place_window(window)}


def _place_window(window: Window) -> dict[str, Any]:
    return {
        "block": window.block,
        "start": window.start,
        "index": window.index,
        "role": str(window.role),
        "begun_s": window.begun_s,
        "ended_s": window.ended_s,
    }


def _rows_of_window(session: Session, window: Window) -> Iterator[dict[str, Any]]:
    fingerprint = session.fingerprints.get(window.arm)
    place = {
        "session": session.source,
        "scenario": session.scenario,
        "workload_hash": session.workload_hash,
        "hardware": fingerprint.facts.get("hardware") if fingerprint else None,
        "arm": str(window.arm),
        **_place_window(window),
    }
    yield from _rows_of_run(window.run, place)
    for name, value in sorted(window.telemetry.items()):
        kind = find_kind(name)
        unit = None if kind is None else kind.unit
        yield {**place, **_describe(window.run), "kind": "telemetry", "metric": name, "unit": unit, "value": value}


def _rows_of_run(run: Run, place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    carried = run.values
    for name, row in METRICS.items():
        if name in carried:
            yield {
                **place,
                **_describe(run),
                "kind": "metric",
                "metric": name,
                "unit": row.unit,
                "better": str(row.better),
                "estimator": run.estimators.get(name),
                "value": carried[name],
            }


def _describe(run: Run) -> dict[str, Any]:
    return {
        "source": run.source,
        "requested": run.requested,
        "completed": run.completed,
        "input_tokens": run.input_tokens,
        "output_tokens": run.output_tokens,
        "duration_s": run.duration_s,
        "problems": len(run.problems),
    }


def dump_csv(rows: Iterable[Row]) -> bytes:
    """Write rows as CSV; what is absent, or no number, is an empty cell.

    A word that a spreadsheet would run as a formula gets an apostrophe before it: names of folders and files are a stranger's.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_write_cell(row.get(name), kind) for name, kind in COLUMNS.items()] for row in rows)
    return text.getvalue().encode()


def _write_cell(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "float64":
        return "" if isnan(value) else repr(float(value))
    return _disarm_formula(str(value)) if kind == "string" else str(int(value))


def _disarm_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
