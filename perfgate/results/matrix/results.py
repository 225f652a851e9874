"""The folder of a matrix, read: every server under every load as a session of one arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.core import Fingerprint
from perfgate.evidence import Answers, CellEvidence, DriverProblem, Session
from perfgate.results.answers import load_answers
from perfgate.results.expert_use import load_use
from perfgate.results.matrix.records import MatrixEntry, MatrixRecord, read_entries, read_key, read_matrix, read_matrix_record
from perfgate.results.records import EVENTS_FILE
from perfgate.results.results import load_windows
from perfgate.results.resumption import read_number
from perfgate.scenario.matrix import Matrix
from perfgate.storage.journal import read_lines


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
        return frozenset(int(read_number(event, "start")) for event in started if event.get("server") in servers)


def load_matrix(folder: Path) -> tuple[Matrix, tuple[CellEvidence, ...]]:
    """Read every cell, in the order of the file. Raise EvidenceError naming the file and the field that is wrong."""
    matrix = read_matrix(folder)
    stored = _Stored(
        folder=folder,
        matrix=matrix,
        record=read_matrix_record(folder),
        events=list(read_lines(folder / EVENTS_FILE)),
        entries=read_entries(folder),
        # A folder from before servers were asked holds no answers, and says nothing of them.
        answers=load_answers(folder) if matrix.equivalence.enabled else (),
    )
    return matrix, tuple(_load_cell(stored, server, load) for server in matrix.servers for load in matrix.loads)


def _load_cell(stored: _Stored, server: str, load: str) -> CellEvidence:
    matrix, arm = stored.matrix, stored.matrix.choose_arm(server)
    scenario = matrix.build_scenario(server, load)
    index = [entry.as_window(arm) for entry in stored.entries if (entry.server, entry.load) == (server, load)]
    windows, superseded, damage = load_windows(stored.folder, index, scenario, stored.events)
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
