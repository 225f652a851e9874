"""The folder of a matrix: raw windows of every server under every load, read as a session of one arm for each cell.

Layout as in a result folder, with `matrix.json` and `matrix.toml` in place of the session's files. A cell is a load met by one
start of a server; the event `cell_ended` makes it whole, `cell_failed` says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass as checked

from perfgate.core import Arm, Fingerprint
from perfgate.errors import EvidenceError
from perfgate.evidence import Answers, CellEvidence, DriverProblem, Session
from perfgate.results.answers import load_answers
from perfgate.results.expert_use import load_use
from perfgate.results.folders import Progressed, measure_progress, read_whole
from perfgate.results.records import (
    EVENTS_FILE,
    INDEX_FILE,
    ArmRecord,
    FolderLayout,
    FolderRecord,
    IndexLine,
    WindowRecord,
    require_text,
)
from perfgate.results.results import find_disordered, load_windows, read_served
from perfgate.scenario.matrix import Matrix, parse_matrix
from perfgate.storage.bounded import require_plain
from perfgate.storage.journal import DAMAGED, read_json, read_lines, read_records
from perfgate.storage.schema import STRICT, Number

MATRIX_FILE = "matrix.json"
TEXT_FILE = "matrix.toml"

Key = tuple[int, str, str]
"""Round, server and load of a cell."""


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class MatrixRecord(FolderRecord):
    """What was fixed before the first window of a matrix."""

    name: str
    servers: Mapping[str, ArmRecord]


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class MatrixEntry(IndexLine):
    """One line of a matrix's index: the window of a cell."""

    round: Number
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
    events, entries = _read_cells(folder, read_matrix(folder))
    settled = frozenset(read_key(event) for event in events if _is_settled(event))
    return settled, measure_progress(folder, events, entries, [entry.file for entry in entries if entry.key not in settled])


def _read_cells(folder: Path, matrix: Matrix) -> tuple[list[dict[str, Any]], list[MatrixEntry]]:
    """The events and the index of a folder. Raise EvidenceError for a line about a cell that its matrix does not have."""
    events, entries = list(read_lines(folder / EVENTS_FILE)), read_entries(folder)
    _require_own_starts(folder, events, entries)
    if disordered := find_disordered(entries):
        raise EvidenceError(f"{folder / INDEX_FILE}: file: {disordered[0]} is numbered against the order of time; {DAMAGED}")
    cells = {(number, server, load) for number, server, loads in matrix.order() for load in loads}
    told = [(EVENTS_FILE, number, read_key(event)) for number, event in enumerate(events, start=1) if _is_settled(event)]
    told += [(INDEX_FILE, number, entry.key) for number, entry in enumerate(entries, start=1)]
    for file, line, (number, server, load) in told:
        if (number, server, load) not in cells:
            raise EvidenceError(
                f"{folder / file}:{line}: round {number}, server {server[:80]!r}, load {load[:80]!r}: no cell of {TEXT_FILE}; "
                f"{DAMAGED}"
            )
    return events, entries


def _require_own_starts(folder: Path, events: Sequence[Mapping[str, Any]], entries: Sequence[MatrixEntry]) -> None:
    """Raise EvidenceError where the index counts a window for another server than the one that the events started."""
    started = read_served(events, "server")
    for line, entry in enumerate(entries, start=1):
        if (server := started.get(entry.start, entry.server)) != entry.server:
            raise EvidenceError(
                f"{folder / INDEX_FILE}:{line}: server: start {entry.start} is of server {server[:80]!r}, not "
                f"{entry.server[:80]!r}; {DAMAGED}"
            )


def _is_settled(event: Mapping[str, Any]) -> bool:
    """Whether an event says that a cell needs no more measuring."""
    return event.get("event") in {"cell_ended", "cell_failed"}


def read_key(event: Mapping[str, Any]) -> Key:
    """The cell that an event of the log is about."""
    return (read_whole(event, "round"), str(event.get("server")), str(event.get("load")))


def require_matrix(folder: Path) -> None:
    """Raise EvidenceError unless `folder` holds a matrix that was begun."""
    if not (folder / MATRIX_FILE).exists():
        raise EvidenceError(f"{folder}: holds no {MATRIX_FILE}, so there is nothing to go on with; leave --resume out")
    read_matrix_record(folder)


def read_matrix(folder: Path) -> Matrix:
    """The matrix that `folder` was begun with. Raise EvidenceError where its text was changed since."""
    path = folder / TEXT_FILE
    return parse_matrix(require_text(path, read_matrix_record(folder)), str(path))


def read_matrix_record(folder: Path) -> MatrixRecord:
    """Read `matrix.json`. Raise EvidenceError naming the field that is wrong, or what leads out of the folder."""
    require_plain(folder)
    return read_json(folder / MATRIX_FILE, MatrixRecord, DAMAGED)


def read_entries(folder: Path) -> list[MatrixEntry]:
    """Read the index: a line for each finished window."""
    return read_records(folder / INDEX_FILE, MatrixEntry, DAMAGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What the folder holds of all cells."""

    folder: Path
    matrix: Matrix
    record: MatrixRecord
    events: Sequence[Mapping[str, Any]]
    entries: Sequence[MatrixEntry]
    answers: Sequence[Answers]

    def list_starts(self, *servers: str) -> frozenset[int]:
        """The numbers of the starts of these servers."""
        started = (event for event in self.events if event.get("event") == "server_started")
        return frozenset(read_whole(event, "start") for event in started if event.get("server") in servers)


def load_matrix(folder: Path) -> tuple[Matrix, tuple[CellEvidence, ...]]:
    """Read every cell, in the order of the file. Raise EvidenceError naming the file and the field that is wrong."""
    matrix = read_matrix(folder)
    record = read_matrix_record(folder)
    events, entries = _read_cells(folder, matrix)
    stored = _Stored(
        folder=folder,
        matrix=matrix,
        record=record,
        events=events,
        entries=entries,
        # A folder from before servers were asked holds no answers, and says nothing of them.
        answers=load_answers(folder) if matrix.equivalence.enabled else (),
    )
    return matrix, tuple(_load_cell(stored, server, load) for server in matrix.servers for load in matrix.loads)


def _load_cell(stored: _Stored, server: str, load: str) -> CellEvidence:
    matrix, arm = stored.matrix, stored.matrix.choose_arm(server)
    scenario = matrix.build_scenario(server, load)
    index = [entry.as_window(arm) for entry in stored.entries if (entry.server, entry.load) == (server, load)]
    cells = (read_key(event) for event in stored.events if event.get("event") == "cell_ended")
    ended = {number for number, *cell in cells if cell == [server, load]}
    windows, superseded, damage = load_windows(stored.folder, index, scenario, stored.events, ended)
    compared = stored.list_starts(server, *matrix.list_bases())
    expert_use, lost = load_use(stored.folder, (arm,), compared)
    record = stored.record.servers.get(server)
    session = Session(
        source=str(stored.folder),
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        fingerprints={arm: Fingerprint(facts=dict(record.facts))} if record is not None else {},
        windows=windows,
        superseded=superseded,
        problems=tuple(_list_failures(stored.events, server, load)),
        damage=(*damage, *lost),
        is_complete=any(event.get("event") == "matrix_ended" for event in stored.events),
        has_base=False,
        checks=("equivalence",) if stored.answers else (),
        answers=tuple(found for found in stored.answers if found.start in compared),
        expert_use=expert_use,
    )
    return CellEvidence(server=server, load=load, session=session)


def _list_failures(events: Sequence[Mapping[str, Any]], server: str, load: str) -> list[DriverProblem]:
    keys = ((read_key(event), event) for event in events if event.get("event") == "cell_failed")
    return [DriverProblem(message=str(event.get("message")), round=key[0]) for key, event in keys if key[1:] == (server, load)]
