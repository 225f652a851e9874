"""The picture of `perfgate matrix`: throughput against median ITL, a point for each load, a line for each server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfgate.errors import InputError
from perfgate.evidence.matrix_results import CellResult
from perfgate.metrics import METRICS
from perfgate.report.figure import save_picture

ACROSS, UP = "output_tok_per_s", "median_itl_ms"


def save_curve_plot(cells: Sequence[CellResult], title: str, path: Path) -> None:
    """Draw the cells that have results, in the order of the file. Raise InputError where none has, or as any picture does."""
    lines = trace_curves(cells)
    if not lines:
        raise InputError(f"--picture {path}: no cell has a throughput and an ITL to draw; the table says why")

    def draw(axes: Any) -> None:
        for server, points in lines.items():
            axes.plot([across for _, across, _ in points], [up for _, _, up in points], marker="o", label=server)
            for load, across, up in points:
                axes.annotate(load, (across, up), textcoords="offset points", xytext=(5, -10), fontsize=8)
        axes.set(title=title, xlim=(0, None), ylim=(0, None))
        axes.set(
            **{side: f"{METRICS[name].title} ({METRICS[name].unit})" for side, name in (("xlabel", ACROSS), ("ylabel", UP))}
        )
        axes.grid(alpha=0.3)
        axes.legend()

    save_picture(path, draw)


def trace_curves(cells: Sequence[CellResult]) -> dict[str, list[tuple[str, float, float]]]:
    """Load, throughput and median ITL of each point, by server; a cell without both has none."""
    lines: dict[str, list[tuple[str, float, float]]] = {}
    for cell in cells:
        across, up = cell.find_level(ACROSS), cell.find_level(UP)
        if across is not None and up is not None:
            lines.setdefault(cell.server, []).append((cell.load, across, up))
    return lines
