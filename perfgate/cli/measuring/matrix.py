"""`perfgate matrix`: servers times loads, one table, no verdict."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.completion import complete_matrix
from perfgate.cli.output import FILE, add_format_option, print_result, print_table
from perfgate.core import Arm
from perfgate.report.cells import describe_cell, remark, tabulate_cells
from perfgate.report.chart.picture import require_format, save_curve_plot
from perfgate.report.table import lay_out_markdown
from perfgate.results.matrix import load_matrix, require_matrix
from perfgate.results.rows import dump_csv, rows_of_cells
from perfgate.scenario.catalog import find_matrix, read_matrix_text
from perfgate.scenario.matrix import parse_matrix
from perfgate.serving.matrix_run import MatrixRequest, measure_matrix
from perfgate.serving.progress import show_progress
from perfgate.storage.places import write_file
from perfgate.verdict.cells import judge_cells


@click.command(name="matrix")
@click.argument("file", metavar="NAME|FILE", shell_complete=complete_matrix)
@click.option("--out", required=True, type=FILE, metavar="DIR", help="New folder for the results.")
@click.option("--resume", is_flag=True, help="Continue the interrupted matrix in DIR; if it is complete, print its table.")
@click.option("--model", type=FILE, help="Folder of the model on this machine.")
@click.option(
    "--caches",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Compile caches of all servers (DIR/base); no other process may write there.",
)
@click.option("--picture", type=FILE, metavar="FILE", help="Draw throughput against median ITL into this .svg file.")
@add_format_option
def command(
    *, file: str, out: Path, resume: bool, model: Path | None, caches: Path | None, picture: Path | None, style: str
) -> int:
    """Measure every server of a shipped matrix or of FILE under every load, and print one table.

    Each round starts every server once and sends it each load. The table is also written to DIR as table.md, and as table.csv
    with a row for each window and metric. Exit code 3: a cell has no valid result.
    """
    path = find_matrix(file)
    text = read_matrix_text(path)
    matrix = parse_matrix(text, str(path))
    if picture is not None:
        # Before hours of measuring, not after them.
        require_format(picture)
    if resume:
        require_matrix(out)
    request = MatrixRequest(
        matrix=matrix, text=text, folder=out, model=model, resume=resume, caches=caches and caches.resolve() / Arm.BASE.value
    )
    with show_progress() as progress:
        measure_matrix(request, progress)
    cells = judge_cells(*load_matrix(out))
    table, remarks = tabulate_cells(cells), list(remark(cells, matrix.rounds))
    write_file("\n".join([lay_out_markdown(table), "", *remarks, ""]).encode(), out / "table.md")
    windows = [(cell.server, cell.load, window) for cell in cells for window in cell.windows]
    write_file(dump_csv(rows_of_cells(windows, str(out))), out / "table.csv")
    if style == "text":
        print_table(table)
    print_result(style, {"cells": [describe_cell(cell) for cell in cells], "remarks": remarks}, *remarks)
    if picture is not None:
        save_curve_plot(cells, matrix.title, picture)
    return 3 if any(cell.problems for cell in cells) else 0
