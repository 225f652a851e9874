"""One query layer over a store, for every output: DuckDB in this process reads the Parquet files where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import duckdb

from perfgate.errors import InputError
from perfgate.history.assembly import LevelRow, assemble_series
from perfgate.history.database import HistoryQuestion, open_tables
from perfgate.history.store import Store
from perfgate.history.trends import History, Ledger, Override, Spending


def read_history(store: Store, question: HistoryQuestion) -> History:
    """Answer a question. Raise InputError when the store holds nothing that fits it, EvidenceError when it cannot be read."""
    with open_tables(store, question) as connection:
        rows = _read_points(connection, question)
        series = assemble_series(rows, _read_environments(connection), _read_margins(connection)) if rows else ()
        if unknown := set(question.metrics) - {one.subject.metric for one in series}:
            raise InputError(f"--metric {min(unknown)[:80]!r}: no session that fits has it; headline metrics need no option")
        return History(
            store=store.url,
            series=series,
            ledger=_read_ledger(connection),
            spending=_read_spending(connection),
        )


def find_session(store: Store, prefix: str) -> str:
    """Return the one session whose name begins with `prefix`. Raise InputError when none or several do."""
    with open_tables(store, HistoryQuestion()) as connection:
        found = connection.execute("SELECT session FROM sessions WHERE starts_with(session, ?)", [prefix]).fetchall()
    if len(found) != 1:
        raise InputError(
            f"session {prefix[:80]!r}: {len(found)} sessions begin so; `perfgate history show --format json` names them"
        )
    return str(found[0][0])


def _read_points(connection: duckdb.DuckDBPyConnection, question: HistoryQuestion) -> list[LevelRow]:
    """The level of each chosen session: the medians of its windows."""
    if not connection.execute("SELECT count(*) FROM chosen").fetchall()[0][0]:
        return []
    connection.execute("""
        CREATE TEMP VIEW measured AS SELECT w.* FROM windows w SEMI JOIN chosen USING (session)
        WHERE judged AND (arm = 'base' OR kind <> 'ab')""")
    connection.execute("""
        CREATE TEMP TABLE levels (session VARCHAR NOT NULL, ran VARCHAR NOT NULL, metric VARCHAR NOT NULL,
            unit VARCHAR NOT NULL, better VARCHAR NOT NULL, value DOUBLE NOT NULL CHECK (isfinite(value)))""")
    # A metric that came later is no column of a store that is older.
    known = {row[0] for row in connection.execute("DESCRIBE windows").fetchall()}
    if columns := [name for name in question.columns if name in known]:
        medians = ", ".join(f"median({name}) AS {name}" for name in columns)
        wide = connection.view("measured").aggregate(f"session, any_value(commit) AS ran, {medians}", "session")
        wide.create_view("wide")
        connection.execute("""
            INSERT INTO levels SELECT session, ran, metric, '', '', value
            FROM (UNPIVOT wide ON COLUMNS(* EXCLUDE (session, ran)) INTO NAME metric VALUE value)""")
    if question.others is None or question.others:
        connection.execute(
            """INSERT INTO levels
            SELECT session, any_value(commit), metric, any_value(unit), any_value(better), median(value)
            FROM (SELECT session, commit, o.name AS metric, o.unit AS unit, o.better AS better, o.value AS value
                FROM (SELECT session, commit, unnest(others) AS o FROM measured WHERE len(others) > 0))
            WHERE coalesce(list_contains(?::VARCHAR[], metric), true) GROUP BY session, metric""",
            [None if question.others is None else list(question.others)],
        )
    found = connection.execute("""
        SELECT c.scenario, c.hardware, c.workload, l.metric, l.unit, l.better, c.session, c.begun, l.value, l.ran, c.runner,
            c.release, c.repository, c.pull_request, c.run
        FROM levels l JOIN chosen c USING (session) ORDER BY ALL""")
    return [LevelRow(*values) for values in _fetch(found)]


def _fetch(found: duckdb.DuckDBPyConnection) -> list[list[Any]]:
    """All rows of a result; its times are UTC."""
    return [[one.replace(tzinfo=UTC) if isinstance(one, datetime) else one for one in row] for row in found.fetchall()]


def _read_environments(connection: duckdb.DuckDBPyConnection) -> dict[str, Mapping[str, str]]:
    """The facts of machine and software by session."""
    found = connection.execute(
        "SELECT session, any_value(environment) FROM verdicts SEMI JOIN chosen USING (session) GROUP BY session"
    )
    return {session: environment or {} for session, environment in found.fetchall()}


def _read_margins(connection: duckdb.DuckDBPyConnection) -> Mapping[tuple[str, str, str], float]:
    """The margin, a ratio, by which each metric was last judged, by scenario, hardware and metric."""
    found = connection.execute("""
        SELECT scenario, hardware, j.metric, arg_max(j.margin, begun)
        FROM (SELECT scenario, hardware, begun, unnest(judgements) AS j FROM verdicts SEMI JOIN chosen USING (session))
        GROUP BY ALL""")
    return {(scenario, hardware, metric): margin_ratio for scenario, hardware, metric, margin_ratio in found.fetchall()}


def _read_ledger(connection: duckdb.DuckDBPyConnection) -> Ledger:
    counts = connection.execute("""
        SELECT count(*) FILTER (kind <> 'aa'), count(*) FILTER (kind <> 'aa' AND outcome = 'REGRESSION'),
            count(*) FILTER (kind = 'aa'), count(*) FILTER (kind = 'aa' AND outcome = 'REGRESSION')
        FROM sessions WHERE kind <> 'import' AND outcome <> 'INVALID'""").fetchall()[0]
    overruled = connection.execute("""
        SELECT session, scenario, hardware, outcome, begun, commit, ruled, person, ruling, reason
        FROM sessions JOIN overrides USING (session) ORDER BY ruled, session""")
    names = ("session", "scenario", "hardware", "outcome", "begun", "commit", "at", "by", "ruling", "reason")
    return Ledger(
        judged=counts[0],
        regressions=counts[1],
        equal_arms=counts[2],
        alarms_of_equal_arms=counts[3],
        overrides=tuple(Override(**dict(zip(names, row, strict=True))) for row in _fetch(overruled)),
    )


def _read_spending(connection: duckdb.DuckDBPyConnection) -> tuple[Spending, ...]:
    found = connection.execute("""
        SELECT hardware, month, outcome, count(*), sum(machine_s) / 60 FROM sessions WHERE machine_s > 0
        GROUP BY ALL ORDER BY ALL""")
    grouped: dict[tuple[str, str], list[tuple[str, int, float]]] = {}
    for hardware, month, outcome, count, minutes in found.fetchall():
        grouped.setdefault((hardware, month), []).append((outcome, count, minutes))
    return tuple(
        Spending(
            hardware=hardware,
            month=month,
            sessions=sum(count for _, count, _ in rows),
            minutes=sum(minutes for *_, minutes in rows),
            outcomes={outcome or "not judged": count for outcome, count, _ in rows},
        )
        for (hardware, month), rows in grouped.items()
    )
