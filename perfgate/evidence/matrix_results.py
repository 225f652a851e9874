"""The folder of a matrix: raw windows of every server under every load, appended as they are measured.

Layout as in a result folder, with `matrix.json` and `matrix.toml` in place of the session's files. A cell is a load met by one
start of a server; the event `cell_ended` makes it whole, `cell_failed` says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.core import Role, Run
from perfgate.errors import EvidenceError
from perfgate.evidence.bench_serving import read_window
from perfgate.evidence.journal import (
    WindowFiles,
    append_line,
    cut_torn_line,
    find_damage,
    read_bytes,
    read_lines,
    write_atomically,
)
from perfgate.evidence.results import EVENTS_FILE, INDEX_FILE, LOG_DIR, ArmRecord, Seconds, describe_first, find_superseded
from perfgate.evidence.resumption import require_equal
from perfgate.matrix import Matrix, parse_matrix

MATRIX_FILE = "matrix.json"
TEXT_FILE = "matrix.toml"

_STRICT = ConfigDict(extra="forbid", defer_build=True)
Number = Annotated[int, Field(ge=1)]
Key = tuple[int, str, str]
"""Round, server and load of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MatrixRecord:
    """What was fixed before the first window."""

    schema: Literal[1]
    perfgate: str
    name: str
    begun_utc: str
    servers: Mapping[str, ArmRecord]
    model: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MatrixEntry:
    """One line of the index: a finished window, the cell that it belongs to and where its raw output lies."""

    round: Number
    server: str
    load: str
    start: Number
    index: Annotated[int, Field(ge=0)]
    role: Role
    begun_s: Seconds
    ended_s: Seconds
    file: Annotated[str, Field(pattern=r"^windows/\d{4,6}\.jsonl\.gz$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    telemetry: Mapping[str, float] = Field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The cell of the window."""
        return (self.round, self.server, self.load)


@cache
def _record_adapter() -> TypeAdapter[MatrixRecord]:
    return TypeAdapter(MatrixRecord)


@cache
def _entry_adapter() -> TypeAdapter[MatrixEntry]:
    return TypeAdapter(MatrixEntry)


class MatrixWriter:
    """Append windows and events to the folder of a matrix; each is on disk before the call returns, or OSError is raised."""

    def __init__(self, folder: Path) -> None:
        """Write behind what the folder holds."""
        self.folder = folder
        self.logs = folder / LOG_DIR
        self.logs.mkdir(exist_ok=True)
        for name in (INDEX_FILE, EVENTS_FILE):
            cut_torn_line(folder / name)
        self._files = WindowFiles(folder)

    @classmethod
    def create(cls, folder: Path, record: MatrixRecord, text: str) -> Self:
        """Begin a matrix. Raise EvidenceError if the folder already holds one, or cannot be written."""
        if (folder / MATRIX_FILE).exists():
            raise EvidenceError(f"{folder}: already holds a matrix; go on with --resume, or give a new folder")
        try:
            write_atomically(folder / TEXT_FILE, text.encode())
            options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
            write_atomically(folder / MATRIX_FILE, orjson.dumps(dump_matrix_record(record), option=options))
            return cls(folder)
        except OSError as error:
            raise EvidenceError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error

    def add_event(self, event: str, at_s: float, **facts: str | float | Sequence[str] | None) -> None:
        """Append one line to the event log."""
        append_line(self.folder / EVENTS_FILE, {"event": event, "at_s": round(at_s, 6), **facts})

    def add_window(self, raw: bytes, **place: Any) -> Path:
        """Store a window's raw output, then its index line, and return the file; `place` fills MatrixEntry."""
        name, digest = self._files.add(raw)
        entry = MatrixEntry(file=name, sha256=digest, **place)
        append_line(self.folder / INDEX_FILE, _entry_adapter().dump_python(entry, mode="json"))
        return self.folder / name


def dump_matrix_record(record: MatrixRecord) -> dict[str, Any]:
    """The content of `matrix.json`."""
    content: dict[str, Any] = _record_adapter().dump_python(record, mode="json")
    return content


@plain(frozen=True, slots=True, kw_only=True)
class MatrixProgress:
    """How far a matrix got: which cells are settled, and which windows belong to a cell that was cut off."""

    settled: frozenset[Key] = frozenset()
    starts: int = 0
    elapsed_s: float = 0.0
    cut: tuple[str, ...] = ()


def read_matrix_progress(folder: Path) -> MatrixProgress:
    """Read how far the matrix in `folder` got; nothing in a folder without one."""
    events, entries = list(read_lines(folder / EVENTS_FILE)), read_entries(folder)
    settled = frozenset(_read_key(event) for event in events if event.get("event") in {"cell_ended", "cell_failed"})
    gone = find_superseded(events)
    starts = [int(event.get("start", 0)) for event in events if event.get("event") == "server_started"]
    return MatrixProgress(
        settled=settled,
        starts=max((*starts, *(entry.start for entry in entries)), default=0),
        elapsed_s=max((*(float(event.get("at_s", 0)) for event in events), *(entry.ended_s for entry in entries)), default=0.0),
        cut=tuple(entry.file for entry in entries if entry.key not in settled and entry.file not in gone),
    )


def _read_key(event: Mapping[str, Any]) -> Key:
    return (int(event.get("round", 0)), str(event.get("server")), str(event.get("load")))


def require_matrix(folder: Path) -> None:
    """Raise EvidenceError unless `folder` holds a matrix that was begun."""
    if not (folder / MATRIX_FILE).exists():
        raise EvidenceError(f"{folder}: holds no {MATRIX_FILE}, so there is nothing to go on with; leave --resume out")
    _read_record(folder)


def require_same_matrix(folder: Path, record: MatrixRecord, matrix: Matrix) -> None:
    """Raise EvidenceError naming the first thing that is not as it was when the matrix in `folder` began."""
    adapter = TypeAdapter(Matrix)
    stored = _read_text(folder)
    require_equal(folder, dump_matrix_record(_read_record(folder)), dump_matrix_record(record))
    require_equal(folder, adapter.dump_python(stored), adapter.dump_python(matrix))


def _read_text(folder: Path) -> Matrix:
    path = folder / TEXT_FILE
    return parse_matrix(read_bytes(path).decode("utf-8", "replace"), str(path))


def _read_record(folder: Path) -> MatrixRecord:
    path = folder / MATRIX_FILE
    try:
        return _record_adapter().validate_python(orjson.loads(read_bytes(path)))
    except orjson.JSONDecodeError as error:
        raise EvidenceError(f"{path}: not valid JSON ({error}); the folder was damaged, measure again") from None
    except ValidationError as error:
        raise EvidenceError(f"{path}: {describe_first(error)}") from None


def read_entries(folder: Path) -> list[MatrixEntry]:
    """Read the index: a line for each finished window."""
    found = []
    for number, line in enumerate(read_lines(folder / INDEX_FILE), start=1):
        try:
            found.append(_entry_adapter().validate_python(line))
        except ValidationError as error:
            raise EvidenceError(f"{folder / INDEX_FILE}:{number}: {describe_first(error)}") from None
    return found


@plain(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A server under a load: the runs that count, with the round of each, and why there are fewer than there should be."""

    server: str
    load: str
    runs: tuple[tuple[MatrixEntry, Run], ...]
    problems: tuple[str, ...]

    def find_level(self, metric: str) -> float | None:
        """The median over rounds of the median of each round's windows; None without a window that carries the metric."""
        levels = self.find_round_levels(metric)
        return median(levels) if levels else None

    def find_round_levels(self, metric: str) -> tuple[float, ...]:
        """The median of each round's windows; their differences are the offsets of starts, and drift."""
        rounds: dict[int, list[float]] = {}
        for entry, run in self.runs:
            if metric in run.values:
                rounds.setdefault(entry.round, []).append(run.values[metric])
        return tuple(median(rounds[number]) for number in sorted(rounds))


def load_matrix(folder: Path) -> tuple[Matrix, tuple[CellResult, ...]]:
    """Read the results of every cell, in the order of the file; a cell without result says why."""
    matrix = _read_text(folder)
    events = list(read_lines(folder / EVENTS_FILE))
    gone = find_superseded(events)
    counted = [entry for entry in read_entries(folder) if entry.role is not Role.WARMUP and entry.file not in gone]
    failures = [(_read_key(event), str(event.get("message"))) for event in events if event.get("event") == "cell_failed"]
    cells = [_load_cell(folder, (server, load), counted, failures) for server in matrix.servers for load in matrix.loads]
    return matrix, tuple(cells)


def _load_cell(
    folder: Path, name: tuple[str, str], entries: Sequence[MatrixEntry], failures: Sequence[tuple[Key, str]]
) -> CellResult:
    problems = [f"round {key[0]}: {message}" for key, message in failures if key[1:] == name]
    failed = {key for key, _ in failures}
    runs = []
    for entry in entries:
        if (entry.server, entry.load) == name and entry.key not in failed:
            run, found = _load_run(folder, entry)
            problems.extend(f"round {entry.round}, window {entry.index}: {problem}" for problem in found)
            runs.extend([(entry, run)] if run else [])
    if not runs and not problems:
        problems = ["was not measured yet; go on with --resume"]
    return CellResult(server=name[0], load=name[1], runs=tuple(runs), problems=tuple(problems))


def _load_run(folder: Path, entry: MatrixEntry) -> tuple[Run | None, tuple[str, ...]]:
    if damage := find_damage(folder, entry.file, entry.sha256):
        return None, (damage,)
    try:
        run = read_window(folder / entry.file)
    except EvidenceError as error:
        return None, (str(error),)
    return run, run.problems
