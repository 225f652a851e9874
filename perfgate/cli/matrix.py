"""`perfgate matrix`: servers times loads, one table, no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.metrics import METRICS
from perfgate.report import wording
from perfgate.report.escape import plain
from perfgate.report.table import Table, lay_out_markdown, print_table
from perfgate.rounding import format_percent

if TYPE_CHECKING:
    from perfgate.evidence.matrix_results import CellResult

SHOWN = ("output_tok_per_s", "p99_itl_ms", "median_itl_ms", "mean_ttft_ms", "mean_e2e_ms")
SPREAD = "output_tok_per_s"


@click.command(name="matrix")
@click.argument("file", metavar="NAME|FILE")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="New folder for the results.")
@click.option(
    "--resume", is_flag=True, help="Go on in DIR, where the same matrix was cut off; print the table of one that ended."
)
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the model, where it lies on this machine.")
@click.option(
    "--picture", type=click.Path(path_type=Path), metavar="FILE", help="Draw throughput against median ITL as .svg or .png."
)
def command(*, file: str, out: Path, resume: bool, model: Path | None, picture: Path | None) -> int:
    """Measure every server of a shipped matrix or of FILE under every load, and print one table.

    Each round starts every server once and lets it meet all loads. The table is also written to DIR as table.md and, a row for
    each window and metric, as table.csv. Exit code 3 when a cell has no result or one that cannot be trusted.
    """
    from perfgate.evidence.frame import frame_of_cells, write_csv  # noqa: PLC0415 - what serves is imported when it serves
    from perfgate.evidence.journal import write_atomically  # noqa: PLC0415
    from perfgate.evidence.matrix_records import require_matrix  # noqa: PLC0415
    from perfgate.evidence.matrix_results import load_matrix  # noqa: PLC0415
    from perfgate.matrix import find_matrix, parse_matrix, read_matrix_text  # noqa: PLC0415
    from perfgate.report.curve_plot import save_curve_plot  # noqa: PLC0415
    from perfgate.report.figure import require_format  # noqa: PLC0415
    from perfgate.serving.matrix_run import MatrixRequest, measure_matrix  # noqa: PLC0415
    from perfgate.serving.progress import show_progress  # noqa: PLC0415

    path = find_matrix(file)
    text = read_matrix_text(path)
    matrix = parse_matrix(text, str(path))
    if picture is not None:
        # Before hours of measuring, not after them.
        require_format(picture)
    if resume:
        require_matrix(out)
    with show_progress() as progress:
        measure_matrix(MatrixRequest(matrix=matrix, text=text, folder=out, model=model, resume=resume), progress)
    _, cells = load_matrix(out)
    table = tabulate(cells)
    remarks = list(remark(cells, matrix.rounds))
    write_atomically(out / "table.md", "\n".join([lay_out_markdown(table), "", *remarks, ""]).encode())
    write_csv(frame_of_cells(cells, str(out)), out / "table.csv")
    print_table(table)
    for line in remarks:
        click.echo(line)
    if picture is not None:
        save_curve_plot(cells, matrix.title, picture)
    return 3 if any(cell.problems for cell in cells) else 0


def tabulate(cells: Sequence[CellResult]) -> Table:
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
    return (cell.server, cell.load, str(len(cell.runs)), *levels, _spread(cell))


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
    if rounds == 1:
        yield "one start of each server: the offset of a start looks like a difference between servers; measure more rounds"
    yield "levels, and no verdict: differences smaller than start to start mean nothing; `perfgate ab` judges one change"
