"""Draw a recorded matrix that was cut off, and print its table: throughput against latency by how many requests are in flight.

    python -m benchmarks.h200.serving.sweep

The folder lies in the history, made smaller by `thin.py`'s rules; a cell that was not measured is none of the table.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.history import ROOT, restore_all
from perfgate.report.cells import tabulate_cells
from perfgate.report.chart.picture import save_curve_plot
from perfgate.report.table import lay_out_markdown
from perfgate.results.matrix import load_matrix
from perfgate.verdict.cells import judge_cells

FOLDER = ROOT / "benchmarks" / "h200" / "serving" / "routed"
PICTURE = ROOT / "docs" / "evidence" / "sweep.svg"
TITLE = "gpt-oss-20b's shape in MXFP4 on an H200: 512 in / 256 out, 1 to 128 requests in flight"


def write_sweep(picture: Path) -> str:
    """Draw the curve; the table in markdown. Raise InputError where this clone's history lacks the folder."""
    cells = judge_cells(*load_matrix(restore_all(FOLDER) / "mxfp4-sweep"))
    save_curve_plot(cells, TITLE, picture)
    return lay_out_markdown(tabulate_cells(cells))


if __name__ == "__main__":
    print(write_sweep(PICTURE))
