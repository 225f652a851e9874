"""The files of a matrix's folder: raw windows of every server under every load, appended as they are measured.

Layout as in a result folder, with `matrix.json` and `matrix.toml` in place of the session's files. A cell is a load met by one
start of a server; the event `cell_ended` makes it whole, `cell_failed` says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from perfgate.core import Arm
from perfgate.errors import EvidenceError
from perfgate.results.records import (
    EVENTS_FILE,
    INDEX_FILE,
    ArmRecord,
    FolderLayout,
    FolderRecord,
    IndexLine,
    WindowRecord,
)
from perfgate.results.resumption import Progressed, measure_progress, read_number
from perfgate.scenario.matrix import Matrix, parse_matrix
from perfgate.storage.bounded import require_plain
from perfgate.storage.journal import DAMAGED, read_bytes, read_json, read_lines, read_records

MATRIX_FILE = "matrix.json"
TEXT_FILE = "matrix.toml"

_STRICT = ConfigDict(extra="forbid", defer_build=True)
Key = tuple[int, str, str]
"""Round, server and load of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MatrixRecord(FolderRecord):
    """What was fixed before the first window of a matrix."""

    name: str
    servers: Mapping[str, ArmRecord]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MatrixEntry(IndexLine):
    """One line of a matrix's index: the window of a cell."""

    round: Annotated[int, Field(ge=1)]
    server: str
    load: str

    @property
    def key(self) -> Key:
        """The cell of the window."""
        return (self.round, self.server, self.load)

    def as_window(self, arm: Arm) -> WindowRecord:
        """The same line as a session's index has it, in which a round is a block."""
        shared = {field.name: getattr(self, field.name) for field in fields(IndexLine)}
        return WindowRecord(arm=arm, block=self.round, **shared)


MATRIX_LAYOUT = FolderLayout(what="matrix", record_file=MATRIX_FILE, text_file=TEXT_FILE, line=MatrixEntry)


def read_settled(folder: Path) -> tuple[frozenset[Key], Progressed]:
    """Which cells of the matrix in `folder` need no more measuring, and how far it got."""
    events, entries = list(read_lines(folder / EVENTS_FILE)), read_entries(folder)
    settled = frozenset(read_key(event) for event in events if event.get("event") in {"cell_ended", "cell_failed"})
    return settled, measure_progress(folder, events, entries, [entry.file for entry in entries if entry.key not in settled])


def read_key(event: Mapping[str, Any]) -> Key:
    """The cell that an event of the log is about."""
    return (int(read_number(event, "round")), str(event.get("server")), str(event.get("load")))


def require_matrix(folder: Path) -> None:
    """Raise EvidenceError unless `folder` holds a matrix that was begun."""
    if not (folder / MATRIX_FILE).exists():
        raise EvidenceError(f"{folder}: holds no {MATRIX_FILE}, so there is nothing to go on with; leave --resume out")
    read_matrix_record(folder)


def read_matrix(folder: Path) -> Matrix:
    """The matrix that `folder` was begun with."""
    path = folder / TEXT_FILE
    return parse_matrix(read_bytes(path).decode("utf-8", "replace"), str(path))


def read_matrix_record(folder: Path) -> MatrixRecord:
    """Read `matrix.json`. Raise EvidenceError naming the field that is wrong, or what leads out of the folder."""
    require_plain(folder)
    return read_json(folder / MATRIX_FILE, MatrixRecord, DAMAGED)


def read_entries(folder: Path) -> list[MatrixEntry]:
    """Read the index: a line for each finished window."""
    return read_records(folder / INDEX_FILE, MatrixEntry, DAMAGED)
