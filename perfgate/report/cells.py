"""The cells of a matrix as a table: servers times loads, levels and no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perfgate.metrics import METRICS
from perfgate.report import wording
from perfgate.report.escape import plain
from perfgate.report.table import Table
from perfgate.storage.rounding import format_percent
from perfgate.verdict.cells import CellResult

SHOWN = ("output_tok_per_s", "p99_itl_ms", "median_itl_ms", "mean_ttft_ms", "mean_e2e_ms")
SPREAD = "output_tok_per_s"


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
    """The range of the rounds' throughputs as a share of their median."""
    levels, middle = cell.find_round_levels(SPREAD), cell.find_level(SPREAD)
    if len(levels) < 2 or not middle:
        return wording.MISSING
    return format_percent((max(levels) - min(levels)) / middle)


def remark(cells: Sequence[CellResult], rounds: int) -> Iterator[str]:
    """What voids a cell, and what the table does not say."""
    for cell in cells:
        yield from (f"PROBLEM {plain(cell.server)} x {plain(cell.load)}: {plain(problem)}" for problem in cell.problems)
    if any(cell.problems for cell in cells):
        yield f"in a problem a block is a round, the base is {plain(cells[0].server)}, and a candidate the server of the cell"
    told = {cell.server: cell.equivalence for cell in cells if cell.equivalence}
    first = cells[0].server if cells else ""
    yield from (f"answers of {plain(server)} held against {plain(first)}: {plain(text)}" for server, text in told.items())
    if rounds == 1:
        yield "one start of each server: the offset of a start looks like a difference between servers; measure more rounds"
    yield "levels, and no verdict: differences smaller than start to start mean nothing; `perfgate ab` judges one change"


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
