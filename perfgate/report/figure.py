"""Pictures by matplotlib: the same numbers give the same file, and a file is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, log1p
from pathlib import Path
from typing import Any

from perfgate.core import Better, Judgement
from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.results.matrix_results import CellResult
from perfgate.verdict.power import Curve, Study

FORMATS = (".png", ".svg")


def save_picture(path: Path, draw: Callable[[Any], None]) -> None:
    """Let `draw` fill the axes, and save them. Raise InputError for another suffix, no matplotlib or an unwritable place."""
    require_format(path)
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InputError("--picture needs matplotlib: pip install 'sglang-perfgate[plots]'") from None
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    draw(figure.add_subplot())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # A fixed salt and no date, or equal numbers would give different bytes.
        with rc_context({"svg.hashsalt": "perfgate"}):
            figure.savefig(
                temporary, format=path.suffix[1:].lower(), metadata={"Date": None} if path.suffix == ".svg" else None
            )
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"--picture {path}: cannot be written ({error.strerror}); choose another place") from None
    finally:
        temporary.unlink(missing_ok=True)


def require_format(path: Path) -> None:
    """Raise InputError for a suffix that is no picture's."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--picture {path}: the name must end in {' or '.join(FORMATS)}")


CELLS_PER_MARGIN = 5
# The picture spans two margins of gain to three of loss, so that rows of different metrics can be read against each other.
ZERO = 2 * CELLS_PER_MARGIN
MARGIN = ZERO + CELLS_PER_MARGIN
WIDTH = 5 * CELLS_PER_MARGIN + 1

LEGEND = (
    "`(==*==)` is the estimate with its interval, `0` no change, `!` the margin; worse is to the right, "
    "`<` or `>` says that the interval goes on. The truth lies beyond each bound 5 times in 100. "
    "PASS needs the whole interval to end before `!`, "
    "REGRESSION a proven loss of more than half the way to it."
)


def draw_interval(judgement: Judgement) -> str:
    """Draw the interval in WIDTH characters, all in units of the metric's margin; empty without a finite interval."""
    bounds = worse_bounds(judgement)
    if bounds is None:
        return ""
    low, middle, high = (round(bound / log1p(judgement.margin) * CELLS_PER_MARGIN) + ZERO for bound in bounds)
    cells = ["."] * WIDTH
    for index in range(max(low, 0), min(high, WIDTH - 1) + 1):
        cells[index] = "="
    cells[ZERO], cells[MARGIN] = "0", "!"
    for index, mark in _ends(low, high):
        cells[index] = mark
    cells[min(max(middle, 0), WIDTH - 1)] = "*"
    return "".join(cells)


def worse_bounds(judgement: Judgement) -> tuple[float, float, float] | None:
    """Put low end, estimate and high end on the log scale where positive is worse; None when one is missing or not finite."""
    ends = (judgement.low, judgement.change, judgement.high)
    found = [value for value in ends if value is not None and isfinite(value) and value > -1]
    if len(found) < len(ends):
        return None
    low, middle, high = (log1p(value) for value in found)
    if METRICS[judgement.metric].better is Better.HIGHER:
        return -high, -middle, -low
    return low, middle, high


def _ends(low: int, high: int) -> Iterator[tuple[int, str]]:
    """Where the brackets stand; an end outside the picture becomes an arrow at its edge."""
    yield (low, "(") if 0 <= low < WIDTH else (0 if low < 0 else WIDTH - 1, "<" if low < 0 else ">")
    yield (high, ")") if 0 <= high < WIDTH else (0 if high < 0 else WIDTH - 1, "<" if high < 0 else ">")


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


def save_power_plot(study: Study, curves: Sequence[Curve], path: Path) -> None:
    """Draw into `path`, whole or not at all. Raise InputError for another suffix, no matplotlib or an unwritable place."""

    def draw(axes: Any) -> None:
        for curve in curves:
            minutes = [reach.minutes for reach in curve.reaches]
            effects = [100 * reach.smallest_effect for reach in curve.reaches]
            axes.plot(minutes, effects, marker="o", linestyle="-" if curve.gating else ":", label=METRICS[curve.metric].title)
        axes.set(
            xlabel="GPU-minutes",
            ylabel="smallest loss found with 90 % power (%)",
            title=f"{study.scenario.name}: what the gate can see ({study.baseline.windows} windows a start)",
            ylim=(0, None),
            xlim=(0, None),
        )
        axes.grid(alpha=0.3)
        axes.legend()

    save_picture(path, draw)
