"""Draw time and ratio over the number of tokens, with the roofline, from results of layer.py.

cd benchmarks/h200/kernels && python ../../kernels/picture.py ../../../docs/kernels-layers.svg *.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from table import OURS

from perfgate_moe.timing.timing import ratio_interval

ACROSS = 3
THEIRS = {"sglang": "SGLang", "sglang-fused-sum": "SGLang, fused sum", "sglang-untuned": "SGLang, its own tiles"}
COLOURS = {"ours": "#1f77b4", "sglang": "#d62728", "sglang-fused-sum": "#ff7f0e", "sglang-untuned": "#9467bd"}


def best(cell: dict[str, Any], names: tuple[str, ...]) -> str:
    """The fastest subject among `names`."""
    return min((name for name in names if name in cell["samples_us"]), key=lambda name: median(cell["samples_us"][name]))


def draw_times(axes: Axes, cells: list[dict[str, Any]]) -> None:
    """Microseconds over tokens, both logarithmic, and the roofline."""
    tokens = [cell["tokens"] for cell in cells]
    axes.plot(tokens, [cell["floor_us"] for cell in cells], color="black", linestyle=":", label="roofline")
    ours = [median(cell["samples_us"][best(cell, OURS)]) for cell in cells]
    axes.plot(tokens, ours, color=COLOURS["ours"], marker="o", markersize=3, label="ours")
    for name, label in THEIRS.items():
        if name not in cells[0]["samples_us"]:
            continue
        times = [median(cell["samples_us"][name]) for cell in cells]
        axes.plot(tokens, times, color=COLOURS[name], marker="s", markersize=2, linewidth=1, label=label)
    axes.set_yscale("log")
    axes.set_ylabel("layer, us")
    axes.legend(fontsize=7)


def draw_ratios(axes: Axes, cells: list[dict[str, Any]]) -> None:
    """The fastest SGLang's time over ours with its interval, and the control of SGLang against itself."""
    for index, cell in enumerate(cells):
        samples = cell["samples_us"]
        middle, low, high = ratio_interval(samples["sglang"], samples["sglang-again"])
        band = axes.fill_between([cell["tokens"] / 1.3, cell["tokens"] * 1.3], low, high, color="#bbbbbb", linewidth=0)
        middle, low, high = ratio_interval(samples[best(cell, tuple(THEIRS))], samples[best(cell, OURS)])
        bars = axes.errorbar(
            cell["tokens"], middle, yerr=[[middle - low], [high - middle]], color=COLOURS["ours"], marker="o", markersize=4
        )
        if index == 0:
            bars.set_label("fastest SGLang / ours")
            band.set_label("control: SGLang / SGLang")
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_ylabel("ratio, 95 % interval")
    axes.legend(fontsize=7)


def shorten(tokens: int) -> str:
    """`2k` for 2048, so that labels do not touch."""
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)


def draw(results: list[list[dict[str, Any]]]) -> Figure:
    """Two plots for each shape, times above ratios, and three shapes side by side."""
    columns = min(len(results), ACROSS)
    bands = -(-len(results) // ACROSS)
    figure = Figure(figsize=(4.6 * columns, 5.6 * bands), layout="constrained")
    grid = figure.subplots(2 * bands, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for index, cells in enumerate(results):
        band, column = divmod(index, ACROSS)
        upper, lower = grid[2 * band][column], grid[2 * band + 1][column]
        draw_times(upper, cells)
        draw_ratios(lower, cells)
        upper.set_title(cells[0]["shape"], fontsize=10)
        for axes in (upper, lower):
            axes.set_visible(True)
            axes.set_xscale("log", base=2)
            axes.set_xticks([cell["tokens"] for cell in cells], [shorten(cell["tokens"]) for cell in cells])
        lower.set_xlabel("tokens M")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("results", type=Path, nargs="+", help="several of one shape are drawn together")
    options = parser.parse_args()
    shapes: dict[str, list[dict[str, Any]]] = {}
    for path in options.results:
        # Other files beside them, such as a tuner's, hold no cells.
        for cell in json.loads(path.read_text()).get("cells", []):
            shapes.setdefault(cell["shape"], []).append(cell)
    ordered = [sorted(cells, key=lambda cell: int(cell["tokens"])) for cells in shapes.values()]
    # A fixed salt and no date: the same data give the same bytes.
    with rc_context({"svg.hashsalt": "perfgate", "font.size": 8}):
        draw(ordered).savefig(options.picture, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
