"""The cells of a matrix as a table: servers times loads, levels and no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perfgate.core import Outcome
from perfgate.metrics import METRICS
from perfgate.report.escape import plain
from perfgate.report.table import Table
from perfgate.report.words import wording
from perfgate.report.words.remedies import name_remedies
from perfgate.storage.rounding import format_percent
from perfgate.verdict.cells import CellResult

SHOWN = ("output_tok_per_s", "p99_itl_ms", "median_itl_ms", "mean_ttft_ms", "mean_e2e_ms")
SPREAD = "output_tok_per_s"
AHEAD, NOT_APART = "ahead", "not apart"


def tabulate_cells(cells: Sequence[CellResult]) -> Table:
    """A cell a line: levels, and how far apart the throughput of its rounds lies."""
    header = (
        "server",
        "load",
        "windows",
        *(f"{METRICS[name].title} ({METRICS[name].unit})" for name in SHOWN),
        "start to start",
    )
    return Table(header=header, rows=[_row(cell) for cell in cells])


def _row(cell: CellResult) -> tuple[str, ...]:
    levels = (wording.value(name, cell.find_level(name), has_unit=False) for name in SHOWN)
    return (cell.server, cell.load, str(len(cell.windows)), *levels, _spread(cell))


def _spread(cell: CellResult) -> str:
    spread = measure_rounds(cell)
    return wording.MISSING if spread is None else format_percent(spread)


def tabulate_best(cells: Sequence[CellResult]) -> Table:
    """For each load the server with the highest throughput, and whether it is ahead by more than starts lie apart."""
    header = ("load", "highest throughput", f"{METRICS[SPREAD].unit}", "ahead of the next", "start to start", "reads as")
    loads = dict.fromkeys(cell.load for cell in cells)
    rows = [row for load in loads if (row := _compare([cell for cell in cells if cell.load == load]))]
    return Table(header=header, rows=rows, words=(0, 1, 5))


def _compare(cells: Sequence[CellResult]) -> tuple[str, ...] | None:
    """One load; None where fewer than two servers have a level."""
    found = sorted(((level, cell) for cell in cells if (level := cell.find_level(SPREAD))), key=lambda pair: -pair[0])
    if len(found) < 2:
        return None
    (first, best), (second, other) = found[:2]
    spreads = {cell.server: measure_rounds(cell) for cell in (best, other)}
    known = [spread for spread in spreads.values() if spread is not None]
    once = [server for server, spread in spreads.items() if spread is None]
    ahead = first / second - 1
    have = "has one start" if len(once) == 1 else "have one start each"
    words = f"unknown: {' and '.join(once)} {have}" if once else AHEAD if ahead > max(known) else NOT_APART
    shown = format_percent(max(known)) if known else wording.MISSING
    return (best.load, best.server, wording.value(SPREAD, first, has_unit=False), format_percent(ahead), shown, words)


def measure_rounds(cell: CellResult) -> float | None:
    """How far the throughputs of a cell's rounds lie apart, as a share of their median; None for less than two."""
    levels, middle = cell.find_round_levels(SPREAD), cell.find_level(SPREAD)
    return None if len(levels) < 2 or not middle else (max(levels) - min(levels)) / middle


def remark(cells: Sequence[CellResult], rounds: int) -> Iterator[str]:
    """What voids a cell, and what the table does not say."""
    for cell in cells:
        yield from (f"PROBLEM {plain(cell.server)} x {plain(cell.load)}: {plain(problem)}" for problem in cell.problems)
    if problems := [problem for cell in cells for problem in cell.problems]:
        entries = dict.fromkeys(name_remedies(Outcome.INVALID, (problem,)) for problem in problems)
        yield f"what to do about a problem: {'; '.join(entries)}"
        yield f"in a problem a block is a round, the base is {plain(cells[0].server)}, and a candidate the server of the cell"
    for cell in cells:
        if 0 < (counted := len(cell.find_round_levels(SPREAD))) < rounds:
            where = f"{plain(cell.server)} x {plain(cell.load)}"
            yield f"{where}: {counted} of {rounds} rounds count; if the matrix was interrupted, continue with --resume"
    told = {cell.server: cell.equivalence for cell in cells if cell.equivalence}
    first = cells[0].server if cells else ""
    yield from (f"answers of {plain(server)} held against {plain(first)}: {plain(text)}" for server, text in told.items())
    if rounds == 1:
        yield "one start of each server: two starts may differ as much as two servers; measure more rounds"
    yield "levels without a verdict: a difference smaller than that between starts means nothing; perfgate ab judges a change"


def describe_cell(cell: CellResult) -> dict[str, Any]:
    """A cell for programs: the level of every metric that its windows carry, in the metric's unit."""
    levels = {name: cell.find_level(name) for name in METRICS}
    return {
        "server": cell.server,
        "load": cell.load,
        "windows": len(cell.windows),
        "levels": {name: level for name, level in levels.items() if level is not None},
        "problems": cell.problems,
        "equivalence": cell.equivalence,
    }
