"""Parquet files in Hive partitions under an fsspec URL: written once, whole or not at all, and merged by `compact`.

    {store}/{windows|verdicts}/scenario=S/hardware=H/month=YYYY-MM/{session or batch-...}.parquet
    {store}/overrides/{...}.parquet

A session is in the store once its verdict is: windows are written first. A file's name identifies its content, so two writers
that append one session write the same file, and a writer needs no lock.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from perfgate.errors import EvidenceError, InputError
from perfgate.history.entries import Partition, SessionRows, digest
from perfgate.history.schema import OVERRIDES, SCHEMA, VERDICTS, WINDOWS, build_schema
from perfgate.storage.journal import write_atomically

_PATH = re.compile(r"/scenario=([^/]+)/hardware=([^/]+)/month=(\d{4}-\d{2})/(batch-)?([0-9a-f]{16})\.parquet$")
# A row that stands twice (a merge that was cut off between writing and deleting) is one row.
_KEYS = {WINDOWS: ("session", "start", "position", "role"), VERDICTS: ("session",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One Parquet file. `session` is empty for a file that holds several."""

    path: str
    place: Partition
    session: str


class Store:
    """A history store. Every method raises EvidenceError, in one line, for what the file system refuses."""

    def __init__(self, url: str) -> None:
        """Open the store at `url`; it need not exist yet. Raise InputError for a URL that nothing here can open."""
        try:
            self.fs, self.root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"--store {url}: cannot be opened ({error}); give a folder or an fsspec URL whose package is installed"
            ) from None
        self.url = url
        self.root = self.root.rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether the files can be opened without fsspec."""
        return isinstance(self.fs, LocalFileSystem)

    def list_fragments(self, table: str) -> tuple[Fragment, ...]:
        """Name the files of a table that stand where this module puts them; any other file is no part of the store."""
        found = ((path, _PATH.search(path)) for path in self._find(table))
        return tuple(
            Fragment(
                path=path,
                place=Partition(scenario=match[1], hardware=match[2], month=match[3]),
                session="" if match[4] else match[5],
            )
            for path, match in found
            if match
        )

    def list_overrides(self) -> tuple[str, ...]:
        """Name the files that hold overruled verdicts."""
        return tuple(path for path in self._find(OVERRIDES) if path.endswith(".parquet"))

    def _find(self, table: str) -> list[str]:
        with self._explain():
            return sorted(self.fs.find(f"{self.root}/{table}"))

    def append(self, entries: Iterable[SessionRows]) -> tuple[SessionRows, ...]:
        """Add the sessions that are not in the store yet and return them. A session counts once, however often it is given.

        Raise InputError when a session is there with another commit: one of the two must be wrong.
        """
        fragments = self.list_fragments(VERDICTS)
        return tuple(
            entry
            for place, found in sorted(_group(entries).items())
            for entry in self._append_to(place, found, _pick(fragments, place))
        )

    def _append_to(self, place: Partition, entries: Sequence[SessionRows], fragments: Sequence[Fragment]) -> list[SessionRows]:
        given = {entry.session: entry for entry in entries}
        known = self._read_commits([one for one in fragments if not one.session or one.session in given])
        for session, commit in known.items():
            if session in given and given[session].verdict["commit"] != commit:
                mine = given[session].verdict["commit"]
                raise InputError(
                    f"session {session} is in the store with commit {commit or '(none)'}, not {mine or '(none)'};"
                    " one of them is wrong: give the right --commit, or take the session's files away first"
                )
        new = [entry for session, entry in given.items() if session not in known]
        if new:
            key = new[0].session if len(new) == 1 else "batch-" + digest(*sorted(one.session.encode() for one in new))
            self._write(WINDOWS, place, key, [row for entry in new for row in entry.windows])
            self._write(VERDICTS, place, key, [entry.verdict for entry in new])
        return new

    def _read_commits(self, fragments: Iterable[Fragment]) -> dict[str, str]:
        tables = (self._read(one.path, ["session", "commit"]) for one in fragments)
        return {row["session"]: row["commit"] for table in tables for row in table.to_pylist()}

    def add_override(self, row: Mapping[str, Any]) -> None:
        """Record that a person overruled a verdict; the newest word on a session counts."""
        content = _pack(OVERRIDES, [row])
        self._put(f"{self.root}/{OVERRIDES}/{row['session']}-{digest(content)}.parquet", content)

    def compact(self) -> tuple[int, int]:
        """Merge the files of each partition into one; return how many files there were before and after.

        What is appended meanwhile stays as it is. A merge that is cut off leaves rows twice, which every reader counts once and
        the next merge takes away. Raise InputError for a file of a newer perfgate: what it says beyond ours would be lost.
        """
        before = after = 0
        for table in (WINDOWS, VERDICTS):
            grouped: dict[Partition, list[Fragment]] = {}
            for fragment in self.list_fragments(table):
                grouped.setdefault(fragment.place, []).append(fragment)
            before += sum(map(len, grouped.values()))
            after += len(grouped)
            for place, found in sorted(grouped.items()):
                if len(found) > 1:
                    self._merge(table, place, found)
        return before, after

    def _merge(self, table: str, place: Partition, fragments: Sequence[Fragment]) -> None:
        schema = build_schema(table)
        whole = pa.concat_tables(_conform(self._read(one.path), schema, one.path) for one in fragments)
        keys = list(_KEYS[table])
        numbered = whole.append_column("row", pa.array(range(len(whole))))
        first = numbered.group_by(keys, use_threads=False).aggregate([("row", "min")])["row_min"]
        kept = whole.take(first).sort_by([(name, "ascending") for name in ("begun", *keys)])
        key = "batch-" + digest(*(one.path.encode() for one in fragments))
        self._put(f"{self._folder(table, place)}/{key}.parquet", _pack_table(kept))
        with self._explain():
            self.fs.rm([one.path for one in fragments if not one.path.endswith(f"/{key}.parquet")])

    def _read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        with self._explain():
            content = self.fs.cat_file(path)
        try:
            return pq.read_table(BytesIO(content), columns=columns)
        except pa.ArrowException as error:
            raise EvidenceError(f"{path}: is no Parquet file of a history store ({_first_line(error)}); take it away") from None

    def _write(self, table: str, place: Partition, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._put(f"{self._folder(table, place)}/{key}.parquet", _pack(table, rows))

    def _folder(self, table: str, place: Partition) -> str:
        return f"{self.root}/{table}/scenario={place.scenario}/hardware={place.hardware}/month={place.month}"

    def _put(self, path: str, content: bytes) -> None:
        """An object store puts a whole object or none; a local file is renamed into place."""
        with self._explain():
            if self.is_local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), content)
            else:
                self.fs.pipe_file(path, content)

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except _list_failures() as error:
            raise EvidenceError(f"--store {self.url}: {_first_line(error)}; check the place and the rights on it") from None


def _list_failures() -> tuple[type[BaseException], ...]:
    """What file systems raise. That of S3 has a family of its own, which is there only where its package is."""
    botocore = sys.modules.get("botocore.exceptions")
    return (OSError, botocore.BotoCoreError) if botocore else (OSError,)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _group(entries: Iterable[SessionRows]) -> dict[Partition, list[SessionRows]]:
    grouped: dict[Partition, list[SessionRows]] = {}
    for entry in entries:
        grouped.setdefault(entry.place, []).append(entry)
    return grouped


def _pick(fragments: Iterable[Fragment], place: Partition) -> list[Fragment]:
    """The files that may hold a session of `place`, in any month: a copied log is older or younger than the first one."""
    wanted = (place.scenario, place.hardware)
    return [fragment for fragment in fragments if (fragment.place.scenario, fragment.place.hardware) == wanted]


def _conform(table: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    """Give a table of an older version the columns that it lacks."""
    columns = [table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type) for field in schema]
    try:
        found = pa.table(columns, schema=schema)
    except (pa.ArrowException, TypeError) as error:
        raise EvidenceError(f"{path}: is no file of a history store ({_first_line(error)}); take it away") from None
    newest = max((number for number in found["schema"].to_pylist() if number is not None), default=SCHEMA)
    if newest > SCHEMA or not set(table.column_names) <= set(schema.names):
        raise InputError(f"{path}: was written by a newer perfgate; upgrade")
    return found


def _pack(table: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    return _pack_table(pa.Table.from_pylist(list(rows), schema=build_schema(table)))


def _pack_table(table: pa.Table) -> bytes:
    content = BytesIO()
    pq.write_table(table, content, compression="zstd")
    return content.getvalue()
