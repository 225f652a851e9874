"""Draw time and ratio over the number of tokens, with the roofline, from results of layer.py.

cd benchmarks/h200/kernels && python ../../kernels/picture.py ../../../docs/evidence/kernels-layers.svg *.json{,.xz}
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from table import OURS, compare_control, read_survey

from perfgate.report.chart.curves import Polyline, draw_polylines
from perfgate.report.chart.picture import ABOVE, BELOW, place_fields, save_picture
from perfgate.report.chart.svg import Drawing, LegendEntry, Panel, Scale, SvgElement, box, dot, find_span, line, trace
from perfgate_moe.timing.timing import ratio_interval

ACROSS = 3
WIDTH, HEIGHT = 1100.0, 190.0
THEIRS = {
    "sglang": "SGLang",
    "sglang-fused-sum": "SGLang, fused sum",
    "sglang-untuned": "SGLang, its own tiles",
    "sglang-mxfp4": "SGLang, 4 bits",
    "sglang-mxfp4-routed": "SGLang, 4 bits, routed before",
}
SIGNS = {
    "ours": ("circle", "series-0"),
    "sglang": ("square", "series-1"),
    "sglang-fused-sum": ("up", "series-2"),
    "sglang-untuned": ("down", "series-3"),
    "sglang-mxfp4": ("diamond", "series-4"),
    "sglang-mxfp4-routed": ("square", "series-5"),
}
KEYS = (
    LegendEntry(sign=(line((1, 8), (21, 8), "roofline"),), text="roofline"),
    *(
        LegendEntry(sign=(line((1, 8), (21, 8), f"curve {style}"), dot((11, 8), outline, f"{style} full")), text=text)
        for (outline, style), text in zip(SIGNS.values(), ("ours; fastest SGLang / ours", *THEIRS.values()), strict=True)
    ),
    LegendEntry(sign=(box((1, 3), (21, 13), "band"),), text="control: SGLang / SGLang"),
)
Cell = dict[str, Any]
Field = tuple[float, float, float]


def best(cell: Cell, names: tuple[str, ...]) -> str:
    """The fastest subject among `names`."""
    return min((name for name in names if name in cell["samples_us"]), key=lambda name: median(cell["samples_us"][name]))


def scale_tokens(cells: list[Cell], field: Field) -> Scale:
    """Tokens on a logarithm, with room for the signs at both ends."""
    return Scale(low=cells[0]["tokens"] / 1.5, high=cells[-1]["tokens"] * 1.5, start=field[0], end=field[1], is_log=True)


def list_ticks(cells: list[Cell], x: Scale) -> tuple[float, ...]:
    """The measured numbers of tokens, without those that would touch the one before."""
    shown: list[float] = []
    for tokens in (float(cell["tokens"]) for cell in cells):
        if not shown or x.place(tokens) - x.place(shown[-1]) >= 20:
            shown.append(tokens)
    return tuple(shown)


def trace_times(cells: list[Cell], subject: str, names: tuple[str, ...], text: str) -> Polyline:
    """The median times of the fastest of `names`."""
    outline, style = SIGNS[subject]
    found = ((cell["tokens"], median(cell["samples_us"][best(cell, names)])) for cell in cells)
    points = tuple((float(tokens), time_us, f"{text}, M={tokens}: {time_us:,.1f} us") for tokens, time_us in found)
    return Polyline(name=text, outline=outline, style=style, points=points)


def draw_times(cells: list[Cell], field: Field) -> Iterator[SvgElement]:
    """Microseconds over tokens, both logarithmic, and the roofline."""
    x = scale_tokens(cells, field)
    times = [trace_times(cells, name, (name,), text) for name, text in THEIRS.items() if name in cells[0]["samples_us"]]
    times.append(trace_times(cells, "ours", OURS, "ours"))
    floors = [(float(cell["tokens"]), cell["floor_us"]) for cell in cells]
    values = [time_us for _, time_us in floors] + [time_us for one in times for _, time_us, _ in one.points]
    y = Scale(low=min(values) / 1.3, high=max(values) * 1.3, start=field[2] + HEIGHT, end=field[2], is_log=True)
    panel = Panel(x=x, y=y, title=f"{cells[0]['shape']}: layer, us", ticks_x=list_ticks(cells, x), show_x=shorten)
    yield from panel.frame()
    yield trace([(x.place(tokens), y.place(time_us)) for tokens, time_us in floors], "roofline")
    yield from draw_polylines(panel, times)


def draw_ratios(cells: list[Cell], field: Field) -> Iterator[SvgElement]:
    """The fastest SGLang's time over ours with its interval, and the control of SGLang against itself."""
    ratios = [
        ratio_interval(cell["samples_us"][best(cell, tuple(THEIRS))], cell["samples_us"][best(cell, OURS)]) for cell in cells
    ]
    controls = [compare_control(cell)[1:] for cell in cells]
    low, high = find_span([1.0, *(value for found in (*ratios, *controls) for value in found)])
    x = scale_tokens(cells, field)
    y = Scale(low=low, high=high, start=field[2] + HEIGHT, end=field[2])
    panel = Panel(x=x, y=y, title="ratio, 95 % interval", x_title="tokens M", ticks_x=list_ticks(cells, x), show_x=shorten)
    yield from panel.frame()
    yield line((field[0], y.place(1.0)), (field[1], y.place(1.0)), "zero")
    for cell, (middle, least, most), control in zip(cells, ratios, controls, strict=True):
        at, (outline, style) = x.place(cell["tokens"]), SIGNS["ours"]
        yield box((at - 8, y.place(control[0])), (at + 8, y.place(control[1])), "band")
        yield line((at, y.place(least)), (at, y.place(most)), f"whisker {style}")
        hint = f"M={cell['tokens']}: {middle:.3f} [{least:.3f}, {most:.3f}]"
        yield dot((at, y.place(middle)), outline, f"{style} full", radius=4.0, hint=hint)


def shorten(tokens: float) -> str:
    """`2k` for 2048, so that labels do not touch."""
    return f"{tokens / 1024:g}k" if tokens >= 1024 else f"{tokens:g}"


def draw(results: list[list[Cell]]) -> Drawing:
    """Two fields for each shape, times above ratios, and three shapes side by side."""
    bands = -(-len(results) // ACROSS)
    fields = list(place_fields(2 * bands * ACROSS, ACROSS, WIDTH, HEIGHT))
    shapes: list[SvgElement] = []
    for index, cells in enumerate(results):
        band, column = divmod(index, ACROSS)
        upper = 2 * band * ACROSS + column
        shapes += [*draw_times(cells, fields[upper]), *draw_ratios(cells, fields[upper + ACROSS])]
    return Drawing(width=WIDTH, height=2 * bands * (ABOVE + HEIGHT + BELOW), shapes=tuple(shapes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("results", type=Path, nargs="+", help="several of one shape are drawn together")
    options = parser.parse_args()
    shapes: dict[str, list[Cell]] = {}
    for path in sorted(options.results):
        # Other files beside them, such as a tuner's, hold no cells.
        for cell in read_survey(path).get("cells", []):
            shapes.setdefault(cell["shape"], []).append(cell)
    ordered = [sorted(cells, key=lambda cell: int(cell["tokens"])) for cells in shapes.values()]
    save_picture(options.picture, "Time of a layer over tokens, and the fastest SGLang's time over ours", draw(ordered), KEYS)


if __name__ == "__main__":
    main()
