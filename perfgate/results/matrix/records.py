"""The files of a matrix's folder: raw windows of every server under every load, appended as they are measured.

Layout as in a result folder, with `matrix.json` and `matrix.toml` in place of the session's files. A cell is a load met by one
start of a server; the event `cell_ended` makes it whole, `cell_failed` says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from perfgate.core import Arm, Role
from perfgate.errors import EvidenceError
from perfgate.results.records import EVENTS_FILE, INDEX_FILE, ArmRecord, Seconds, WindowRecord, find_superseded
from perfgate.results.resumption import require_equal, require_same_inherited
from perfgate.results.writer import FolderWriter, begin_folder, format_record
from perfgate.scenario.matrix import Matrix, parse_matrix
from perfgate.storage.journal import DAMAGED, read_bytes, read_json, read_lines, read_records
from perfgate.storage.schema import adapt, dump

MATRIX_FILE = "matrix.json"
TEXT_FILE = "matrix.toml"

_STRICT = ConfigDict(extra="forbid", defer_build=True)
Number = Annotated[int, Field(ge=1)]
Key = tuple[int, str, str]
"""Round, server and load of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MatrixRecord:
    """What was fixed before the first window. `inherited` is as in a session's record."""

    schema: Literal[1]
    perfgate: str
    name: str
    begun_utc: str
    servers: Mapping[str, ArmRecord]
    model: Mapping[str, str]
    inherited: Mapping[str, str] | None = None


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

    def as_window(self, arm: Arm) -> WindowRecord:
        """The same line as a session's index has it, in which a round is a block."""
        return WindowRecord(
            arm=arm,
            block=self.round,
            start=self.start,
            index=self.index,
            role=self.role,
            begun_s=self.begun_s,
            ended_s=self.ended_s,
            file=self.file,
            sha256=self.sha256,
            telemetry=self.telemetry,
        )


class MatrixWriter(FolderWriter[MatrixEntry]):
    """The writer of one matrix."""

    def __init__(self, folder: Path) -> None:
        """Go on behind what the folder of a matrix holds."""
        super().__init__(folder, MatrixEntry)

    @classmethod
    def create(cls, folder: Path, record: MatrixRecord, text: str) -> Self:
        """Begin a matrix. Raise EvidenceError if the folder already holds one, or cannot be written."""
        files = {TEXT_FILE: text.encode(), MATRIX_FILE: format_record(dump(record))}
        begin_folder(folder, "matrix", files)
        return cls(folder)


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
    settled = frozenset(read_key(event) for event in events if event.get("event") in {"cell_ended", "cell_failed"})
    gone = find_superseded(events)
    starts = [int(event.get("start", 0)) for event in events if event.get("event") == "server_started"]
    return MatrixProgress(
        settled=settled,
        starts=max((*starts, *(entry.start for entry in entries)), default=0),
        elapsed_s=max((*(float(event.get("at_s", 0)) for event in events), *(entry.ended_s for entry in entries)), default=0.0),
        cut=tuple(entry.file for entry in entries if entry.key not in settled and entry.file not in gone),
    )


def read_key(event: Mapping[str, Any]) -> Key:
    """The cell that an event of the log speaks of."""
    return (int(event.get("round", 0)), str(event.get("server")), str(event.get("load")))


def require_matrix(folder: Path) -> None:
    """Raise EvidenceError unless `folder` holds a matrix that was begun."""
    if not (folder / MATRIX_FILE).exists():
        raise EvidenceError(f"{folder}: holds no {MATRIX_FILE}, so there is nothing to go on with; leave --resume out")
    read_matrix_record(folder)


def require_same_matrix(folder: Path, record: MatrixRecord, matrix: Matrix) -> None:
    """Raise EvidenceError naming the first thing that is not as it was when the matrix in `folder` began."""
    adapter = adapt(Matrix)
    stored = read_text(folder)
    began, begins = dump(read_matrix_record(folder)), dump(record)
    require_same_inherited(folder, began, begins)
    require_equal(folder, began, begins)
    require_equal(folder, adapter.dump_python(stored), adapter.dump_python(matrix))


def read_text(folder: Path) -> Matrix:
    """The matrix that `folder` was begun with."""
    path = folder / TEXT_FILE
    return parse_matrix(read_bytes(path).decode("utf-8", "replace"), str(path))


def read_matrix_record(folder: Path) -> MatrixRecord:
    """Read `matrix.json`. Raise EvidenceError naming the field that is wrong."""
    return read_json(folder / MATRIX_FILE, MatrixRecord, DAMAGED)


def read_entries(folder: Path) -> list[MatrixEntry]:
    """Read the index: a line for each finished window."""
    return read_records(folder / INDEX_FILE, MatrixEntry, DAMAGED)
