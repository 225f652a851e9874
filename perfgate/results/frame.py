"""Windows and runs as one tidy pandas frame: a row for each number, ready for `groupby` and `pivot_table`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any

from pandas import DataFrame, Series

from perfgate.core import Run, Window
from perfgate.errors import InputError
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.results.readings import find_kind

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


def frame_of_sessions(sessions: Iterable[Session]) -> DataFrame:
    """One row for each window and metric, and for each window and telemetry reading (`kind` tells them apart).

    `index`, `block` and `start` place the window in its session; `problems` counts what is wrong with it.
    `docs/how-to/compare.md`     shows how to make it wide.
    """
    return _build(row for session in sessions for window in session.windows for row in _rows_of_window(session, window))


def frame_of_runs(runs: Iterable[Run]) -> DataFrame:
    """One row for each run and metric, in the same columns; what only a session knows is absent."""
    return _build(row for run in runs for row in _rows_of_run(run, {}))


def frame_of_cells(windows: Iterable[tuple[str, str, Window]], name: str) -> DataFrame:
    """One row for each window of a matrix, with its server and load, and metric.

    `arm` holds the server, `scenario` the load, `block` the round.
    """
    return _build(row for place in windows for row in _rows_of_run(place[2].run, {"session": name, **_place_cell(*place)}))


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


def _build(rows: Iterable[Mapping[str, Any]]) -> DataFrame:

    table = list(rows)
    return DataFrame({name: Series([row.get(name) for row in table], dtype=kind) for name, kind in COLUMNS.items()})


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
    carried = run.values  # noqa: PD011 - a mapping, not a frame
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


def dump_csv(frame: DataFrame) -> bytes:
    """Write the frame as CSV.

    A word that a spreadsheet would run as a formula gets an apostrophe before it: names of folders and files are a stranger's.
    """
    texts = {name: frame[name].map(_disarm_formula, na_action="ignore") for name, kind in COLUMNS.items() if kind == "string"}
    return frame.assign(**texts).to_csv(index=False).encode()


def _disarm_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def dump_parquet(frame: DataFrame) -> bytes:
    """Write the frame as Parquet. Raise InputError without pyarrow."""
    content = BytesIO()
    try:
        frame.to_parquet(content, index=False, engine="pyarrow")
    except ImportError:
        raise InputError("Parquet needs pyarrow; pip install pyarrow, or use CSV") from None
    return content.getvalue()
