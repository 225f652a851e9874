"""One query layer over a store, for every output: DuckDB in this process reads the Parquet files where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from perfgate.errors import EvidenceError, InputError
from perfgate.history.assembly import Row, assemble_series
from perfgate.history.schema import OVERRIDES, SCHEMA, VERDICTS, WINDOWS
from perfgate.history.store import Store
from perfgate.history.trends import History, Ledger, Override, Spending
from perfgate.metrics import METRICS

LAST = 400
"""So many newest sessions of a series are shown unless somebody asks for more; releases always are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody wants to know; an empty tuple asks for everything, of `metrics` for those that come first in every output.

    `last` counts the newest sessions of each series, 0 for all.
    """

    scenarios: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    since: datetime | None = None
    last: int = LAST

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics of perfgate's own table that are asked for."""
        return tuple(name for name, row in METRICS.items() if name in self.metrics or (not self.metrics and row.headline))

    @property
    def others(self) -> tuple[str, ...] | None:
        """Names of imported metrics that are asked for; None for all of them."""
        return tuple(name for name in self.metrics if name not in METRICS) if self.metrics else None


def ask(store: Store, question: Question) -> History:
    """Answer a question. Raise InputError when the store holds nothing that fits it, EvidenceError when it cannot be read."""
    with _connect(store, question) as connection:
        rows = _read_points(connection, question)
        return History(
            store=store.url,
            series=assemble_series(rows, _read_margins(connection)),
            ledger=_read_ledger(connection),
            spending=_read_spending(connection),
        )


def find_session(store: Store, prefix: str) -> str:
    """Return the one session whose name begins with `prefix`. Raise InputError when none or several do."""
    with _connect(store, Question()) as connection:
        found = connection.execute("SELECT session FROM sessions WHERE starts_with(session, ?)", [prefix]).fetchall()
    if len(found) != 1:
        raise InputError(
            f"session {prefix[:80]!r}: {len(found)} sessions begin so; `perfgate history show --format json` names them"
        )
    return str(found[0][0])


@contextmanager
def _connect(store: Store, question: Question) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory over the store's files. Whatever it stumbles over is an EvidenceError of one line."""
    try:
        with duckdb.connect() as connection:
            _open(connection, store, question)
            yield connection
    except duckdb.Error as error:
        first = str(error).strip().splitlines()[0][:400]
        raise EvidenceError(f"--store {store.url}: cannot be read ({first}); take the file away, or ask again") from None


def _open(connection: duckdb.DuckDBPyConnection, store: Store, question: Question) -> None:
    """Make the views `windows`, `sessions` and `overruled`; files outside the question are not even opened."""
    connection.execute("SET TimeZone = 'UTC'")
    if not store.is_local:
        connection.register_filesystem(store.fs)
    since = f"{question.since:%Y-%m}" if question.since else ""
    for table in (WINDOWS, VERDICTS):
        paths = [
            fragment.path
            for fragment in store.list_fragments(table)
            if (not question.scenarios or fragment.place.scenario in question.scenarios)
            and (not question.hardware or fragment.place.hardware in question.hardware)
            and fragment.place.month >= since
        ]
        if not paths:
            raise InputError(f"--store {store.url}: no session that fits; `perfgate history append` and `import` add some")
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {_scan(store, paths)}")  # noqa: S608 - quoted below
    _refuse_newer(connection, store)
    moment = f"WHERE begun >= TIMESTAMPTZ '{question.since.isoformat()}'" if question.since else ""
    # DISTINCT ON: a merge that was cut off leaves a row in two files. Python's times with a zone would need pytz.
    connection.execute(f"""
        CREATE TABLE sessions AS SELECT DISTINCT ON (session) * REPLACE (begun::TIMESTAMP AS begun)
        FROM {VERDICTS} {moment}""")  # noqa: S608 - constants and a time
    _open_overrides(connection, store)


def _open_overrides(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    columns = "session, ruled::TIMESTAMP AS ruled, person, ruling, reason"
    if paths := store.list_overrides():
        newest = f"SELECT DISTINCT ON (session) {columns} FROM {_scan(store, paths)} ORDER BY session, ruled DESC"  # noqa: S608
    else:
        newest = "SELECT '' AS session, now()::TIMESTAMP AS ruled, '' AS person, '' AS ruling, '' AS reason WHERE false"
    connection.execute(f"CREATE TABLE {OVERRIDES} AS {newest}")


def _scan(store: Store, paths: Iterable[str]) -> str:
    urls = paths if store.is_local else (store.fs.unstrip_protocol(path) for path in paths)
    listed = ", ".join("'" + url.replace("'", "''") + "'" for url in urls)
    return f"read_parquet([{listed}], hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"


def _refuse_newer(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    newest = connection.execute(f"SELECT max(schema) FROM {VERDICTS}").fetchall()[0][0]  # noqa: S608 - a constant
    if newest > SCHEMA:
        raise InputError(
            f"--store {store.url}: was written by a newer perfgate (schema {newest}, not {SCHEMA}); upgrade perfgate"
        )


def _read_points(connection: duckdb.DuckDBPyConnection, question: Question) -> list[Row]:
    """The level of each session: newest sessions first chosen, then the medians of their windows."""
    last = "" if not question.last else f"WHERE age <= {int(question.last)} OR release <> ''"
    connection.execute(f"""
        CREATE TABLE chosen AS SELECT * FROM (
            SELECT *, row_number() OVER (PARTITION BY scenario, hardware, workload, origin ORDER BY begun DESC) AS age
            FROM sessions WHERE outcome <> 'INVALID'
        ) {last}""")  # noqa: S608 - an integer
    level = f"SELECT w.* FROM {WINDOWS} w SEMI JOIN chosen USING (session) WHERE judged AND (arm = 'base' OR kind <> 'ab')"  # noqa: S608
    rows: list[Row] = []
    if question.columns:
        medians = ", ".join(f"median({name}) AS {name}" for name in question.columns)
        wide = f"SELECT session, any_value(commit) AS ran, {medians} FROM ({level}) GROUP BY session"  # noqa: S608
        listed = ", ".join(question.columns)
        long = f"SELECT * FROM ({wide}) UNPIVOT (value FOR metric IN ({listed}))"  # noqa: S608
        rows += _fetch_rows(connection, f"SELECT session, ran, metric, '' AS unit, '' AS better, value FROM ({long})")  # noqa: S608
    if question.others is None or question.others:
        wanted = "" if question.others is None else "WHERE list_contains(?, metric)"
        rows += _fetch_rows(
            connection,
            f"""SELECT session, any_value(commit) AS ran, metric, any_value(unit) AS unit, any_value(better) AS better,
                median(value) AS value
            FROM (SELECT session, commit, o.name AS metric, o.unit AS unit, o.better AS better, o.value AS value
                FROM (SELECT session, commit, unnest(others) AS o FROM ({level}) WHERE len(others) > 0)) {wanted}
            GROUP BY session, metric""",  # noqa: S608 - made of constants
            [] if question.others is None else [list(question.others)],
        )
    return rows


def _fetch_rows(connection: duckdb.DuckDBPyConnection, levels: str, parameters: Sequence[Any] = ()) -> list[Row]:
    found = connection.execute(
        f"""SELECT c.scenario, c.hardware, c.workload, l.metric, l.unit, l.better, c.session, c.begun, l.value, l.ran, c.runner,
            c.release, c.environment
        FROM ({levels}) l JOIN chosen c USING (session) ORDER BY ALL""",  # noqa: S608 - made of constants
        parameters,
    )
    return [Row(*values) for values in _fetch(found)]


def _fetch(found: duckdb.DuckDBPyConnection) -> list[list[Any]]:
    """All rows of a result; its times are UTC."""
    return [[one.replace(tzinfo=UTC) if isinstance(one, datetime) else one for one in row] for row in found.fetchall()]


def _read_margins(connection: duckdb.DuckDBPyConnection) -> Mapping[tuple[str, str, str], float]:
    """The margin by which each metric was last judged, by scenario, hardware and metric."""
    found = connection.execute("""
        SELECT scenario, hardware, j.metric, arg_max(j.margin, begun)
        FROM (SELECT scenario, hardware, begun, unnest(judgements) AS j FROM sessions) GROUP BY ALL""")
    return {(scenario, hardware, metric): margin for scenario, hardware, metric, margin in found.fetchall()}


def _read_ledger(connection: duckdb.DuckDBPyConnection) -> Ledger:
    counts = connection.execute("""
        SELECT count(*) FILTER (kind <> 'aa'), count(*) FILTER (kind <> 'aa' AND outcome = 'REGRESSION'),
            count(*) FILTER (kind = 'aa'), count(*) FILTER (kind = 'aa' AND outcome = 'REGRESSION')
        FROM sessions WHERE kind <> 'import'""").fetchall()[0]
    overruled = connection.execute(f"""
        SELECT session, scenario, hardware, outcome, begun, commit, ruled, person, ruling, reason
        FROM sessions JOIN {OVERRIDES} USING (session) ORDER BY ruled, session""")  # noqa: S608 - a constant
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
