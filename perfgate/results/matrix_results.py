"""The folder of a matrix, read: a level for every server under every load, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from perfgate.core import Role, Run
from perfgate.errors import EvidenceError
from perfgate.readers.bench_serving import read_window
from perfgate.results.matrix_answers import Agreement, compare_servers
from perfgate.results.matrix_records import Key, MatrixEntry, read_entries, read_key, read_text
from perfgate.results.raw.raw_files import find_damage
from perfgate.results.records import EVENTS_FILE, find_superseded
from perfgate.scenario.matrix import Matrix
from perfgate.storage.journal import read_lines
from perfgate.verdict.validity.admission import check_telemetry
from perfgate.verdict.validity.same_work import describe_other_work


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A server under a load: the runs that count, with the round of each, and why there are fewer than there should be.

    `equivalence` says in a sentence how far the server's answers are from the first server's; empty where nothing was compared.
    """

    server: str
    load: str
    runs: tuple[tuple[MatrixEntry, Run], ...]
    problems: tuple[str, ...]
    equivalence: str = ""

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
    matrix = read_text(folder)
    events = list(read_lines(folder / EVENTS_FILE))
    gone = find_superseded(events)
    counted = [entry for entry in read_entries(folder) if entry.role is not Role.WARMUP and entry.file not in gone]
    agreements = compare_servers(folder, matrix, events, counted)
    failures = [(read_key(event), str(event.get("message"))) for event in events if event.get("event") == "cell_failed"]
    cells = [
        _add_agreement(_load_cell(folder, (matrix, server, name), counted, failures), agreements.get(server, Agreement()))
        for server in matrix.servers
        for name in matrix.loads
    ]
    return matrix, tuple(cells)


def _add_agreement(cell: CellResult, found: Agreement) -> CellResult:
    return replace(cell, problems=(*cell.problems, *found.problems), equivalence=found.sentence)


def _load_cell(
    folder: Path, cell: tuple[Matrix, str, str], entries: Sequence[MatrixEntry], failures: Sequence[tuple[Key, str]]
) -> CellResult:
    matrix, name = cell[0], cell[1:]
    problems = [f"round {key[0]}: {message}" for key, message in failures if key[1:] == name]
    failed = {key for key, _ in failures}
    runs: list[tuple[MatrixEntry, Run]] = []
    measured = [entry for entry in entries if (entry.server, entry.load) == name and entry.key not in failed]
    spoilt = {entry.file: work for entry in measured if (work := _describe_work(entry, matrix))}
    for entry in measured:
        if entry.file not in spoilt:
            run, found = _load_run(folder, entry, matrix)
            problems.extend(f"round {entry.round}, window {entry.index}: {problem}" for problem in found)
            runs.extend([(entry, run)] if run else [])
    whole = {number for number, count in Counter(entry.round for entry, _ in runs).items() if count >= matrix.windows}
    for entry in measured:
        if entry.file in spoilt and entry.round not in whole:
            work = f"the server {spoilt[entry.file]}, and no re-run stands in its place"
            problems.append(f"round {entry.round}, window {entry.index}: {work}; it does not count, measure again")
    if not runs and not problems:
        problems = ["was not measured yet; go on with --resume"]
    return CellResult(server=name[0], load=name[1], runs=tuple(runs), problems=tuple(problems))


def _describe_work(entry: MatrixEntry, matrix: Matrix) -> str:
    return describe_other_work(entry.telemetry, allows_retraction=matrix.allow_retraction)


def _load_run(folder: Path, entry: MatrixEntry, matrix: Matrix) -> tuple[Run | None, tuple[str, ...]]:
    """A window's run, and why it is no evidence; no run where it was damaged, or disturbed by what a verdict would not bear."""
    if damage := find_damage(folder, entry.file, entry.sha256):
        return None, (damage,)
    try:
        run = read_window(folder / entry.file)
    except EvidenceError as error:
        return None, (str(error),)
    disturbed = tuple(check_telemetry(entry.telemetry, entry.ended_s - entry.begun_s, matrix.loads[entry.load]))
    return None if disturbed else run, (*run.problems, *disturbed)
