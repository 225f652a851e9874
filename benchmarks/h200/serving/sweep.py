"""Draw recorded matrices, and print their tables: throughput against latency by requests in flight.

    python -m benchmarks.h200.serving.sweep

The folders lie in the history, made smaller by `thin.py`'s rules; a cell that was not measured is none of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.history import ROOT, restore_all
from perfgate.report.cells import tabulate_cells
from perfgate.report.chart.picture import save_curve_plot
from perfgate.report.table import lay_out_markdown
from perfgate.results.matrix import load_matrix
from perfgate.verdict.cells import judge_cells

FOLDER = ROOT / "benchmarks" / "h200" / "serving" / "routed"
EVIDENCE = ROOT / "docs" / "evidence"
DRAWN = {
    "sweep.svg": ("gpt-oss-20b's shape in MXFP4 on an H200: 512 in / 256 out, 1 to 128 requests in flight", ("mxfp4-sweep-2",)),
    "spread.svg": (
        "gpt-oss-20b's shape in bf16 on one H200 (tp1) and on two (tp2, ep2): 512 in / 256 out, 1 to 128 requests in flight",
        ("bf16-spread", "bf16-spread-ep2"),
    ),
}
"""Each picture with its title and the folders of its matrices."""


def write_sweep(picture: Path, title: str, folders: Sequence[str]) -> str:
    """Draw matrices as one; their table in markdown. Raise InputError where this clone's history lacks a folder."""
    measured = [judge_cells(*load_matrix(restore_all(FOLDER) / folder)) for folder in folders]
    cells = [cell for matrix in measured for cell in matrix if cell.windows]
    save_curve_plot(cells, title, picture)
    return lay_out_markdown(tabulate_cells(cells))


if __name__ == "__main__":
    for file, (title, folders) in DRAWN.items():
        print(write_sweep(EVIDENCE / file, title, folders))
