"""Draw recorded matrices that were cut off, and print their tables: throughput against latency by requests in flight.

    python -m benchmarks.h200.serving.sweep

The folders lie in the history, made smaller by `thin.py`'s rules; a cell that was not measured is none of a table.
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
EVIDENCE = ROOT / "docs" / "evidence"
DRAWN = {
    "mxfp4-sweep": ("sweep.svg", "gpt-oss-20b's shape in MXFP4 on an H200: 512 in / 256 out, 1 to 128 requests in flight"),
    "bf16-spread": (
        "spread.svg",
        "gpt-oss-20b's shape in bf16 on one H200 (tp1) and on two (tp2): 512 in / 256 out, 1 to 128 requests in flight",
    ),
}
"""The folder of each matrix, with its picture and the picture's title."""


def write_sweep(name: str, picture: Path) -> str:
    """Draw a matrix; its table in markdown. Raise InputError where this clone's history lacks the folder."""
    cells = [cell for cell in judge_cells(*load_matrix(restore_all(FOLDER) / name)) if cell.windows]
    save_curve_plot(cells, DRAWN[name][1], picture)
    return lay_out_markdown(tabulate_cells(cells))


if __name__ == "__main__":
    for folder, (file, _) in DRAWN.items():
        print(write_sweep(folder, EVIDENCE / file))
