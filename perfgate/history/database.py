"""A store's files as tables of a database in this process, which lives as long as one question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import duckdb

from perfgate.errors import EvidenceError, InputError
from perfgate.history.entries import Partition
from perfgate.history.schema import PLACES, SCHEMA, VERDICTS, WINDOWS
from perfgate.history.store import Store
from perfgate.metrics import METRICS

LAST = 400
"""So many newest sessions of a series are shown by default; releases always are."""

_TEXTS = ("session", "scenario", "hardware", "month", "workload", "origin", "kind", "commit", "runner", "release", "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuestion:
    """What to read of a store. An empty tuple means everything; empty `metrics` mean the headline metrics.

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


@contextmanager
def open_tables(store: Store, question: HistoryQuestion) -> Iterator[duckdb.DuckDBPyConnection]:
    """Make the tables `sessions` (one row each, without what is large), `overrides` and `chosen` (the sessions of the trends).

    `windows` and `verdicts` are views over the files in which chosen sessions lie; both are missing while none is chosen.
    Raise EvidenceError, in one line, for every error of the database.
    """
    try:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            # It goes to stdout, into the middle of our JSON.
            connection.execute("SET enable_progress_bar = false")
            if not store.is_local:
                connection.register_filesystem(store.fs)
            _read_sessions(connection, store, question)
            _read_overrides(connection, store)
            _choose(connection, store, question)
            yield connection
    except duckdb.Error as error:
        first = str(error).strip().splitlines()[0][:400]
        raise EvidenceError(f"--store {store.url}: cannot be read ({first}); take the file away, or ask again") from None


def _read_sessions(connection: duckdb.DuckDBPyConnection, store: Store, question: HistoryQuestion) -> None:
    """Files outside the question are not even opened."""
    since = f"{question.since:%Y-%m}" if question.since else ""
    found = [
        fragment
        for fragment in store.list_fragments(VERDICTS)
        if (not question.scenarios or fragment.place.scenario in question.scenarios)
        and (not question.hardware or fragment.place.hardware in question.hardware)
        and fragment.place.month >= since
    ]
    if not found:
        raise InputError(f"--store {store.url}: no session that fits; `perfgate history append` and `import` add some")
    _view(connection, store, "told", [fragment.path for fragment in found])
    known = {row[0] for row in connection.execute("DESCRIBE told").fetchall()}
    places = ", ".join(f"coalesce({name}, '') AS {name}" if name in known else f"'' AS {name}" for name in PLACES)
    texts = ", ".join(f"{name} VARCHAR NOT NULL" for name in _TEXTS + PLACES)
    connection.execute(f"CREATE TABLE sessions ({texts}, begun TIMESTAMP NOT NULL, machine_s DOUBLE)")
    # DISTINCT ON: a merge that was cut off leaves a row in two files. Python's times with a zone would need pytz.
    connection.execute(
        f"""INSERT INTO sessions SELECT DISTINCT ON (session) {", ".join(_TEXTS)}, {places}, begun::TIMESTAMP, machine_s
        FROM told WHERE begun >= coalesce(?::TIMESTAMPTZ, '-infinity'::TIMESTAMPTZ)""",  # noqa: S608 - names of our own columns
        [question.since.isoformat() if question.since else None],
    )


def _read_overrides(connection: duckdb.DuckDBPyConnection, store: Store) -> None:
    connection.execute("""
        CREATE TABLE overrides (session VARCHAR NOT NULL, ruled TIMESTAMP NOT NULL, person VARCHAR NOT NULL,
            ruling VARCHAR NOT NULL, reason VARCHAR NOT NULL)""")
    if paths := store.list_overrides():
        _view(connection, store, "rulings", paths)
        connection.execute("""
            INSERT INTO overrides SELECT DISTINCT ON (session) session, ruled::TIMESTAMP, person, ruling, reason
            FROM rulings ORDER BY session, ruled DESC""")


def _choose(connection: duckdb.DuckDBPyConnection, store: Store, question: HistoryQuestion) -> None:
    connection.execute(
        """CREATE TABLE chosen AS SELECT * FROM (
            SELECT *, row_number() OVER (PARTITION BY scenario, hardware, workload, origin ORDER BY begun DESC) AS age
            FROM sessions WHERE outcome <> 'INVALID'
        ) WHERE $last = 0 OR age <= $last OR release <> ''""",
        {"last": question.last},
    )
    found = connection.execute("SELECT DISTINCT scenario, hardware, month FROM chosen").fetchall()
    places = {Partition(scenario=scenario, hardware=hardware, month=month) for scenario, hardware, month in found}
    for table in (WINDOWS, VERDICTS) if places else ():
        _view(connection, store, table, [one.path for one in store.list_fragments(table) if one.place in places])


def _view(connection: duckdb.DuckDBPyConnection, store: Store, name: str, paths: Iterable[str]) -> None:
    """Raise InputError where one of the files is of a newer perfgate."""
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {_scan(store, paths)}")  # noqa: S608 - quoted below
    newest = connection.execute(f"SELECT max(schema::BIGINT) FROM {name}").fetchall()[0][0]  # noqa: S608 - a name of ours
    if newest is not None and newest > SCHEMA:
        raise InputError(f"--store {store.url}: was written by a newer perfgate (schema {newest}, not {SCHEMA}); upgrade")


def _scan(store: Store, paths: Iterable[str]) -> str:
    urls = paths if store.is_local else (store.fs.unstrip_protocol(path) for path in paths)
    listed = ", ".join("'" + url.replace("'", "''") + "'" for url in urls)
    return f"read_parquet([{listed}], hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
