"""Lines over a size: layers over tokens with their roofline, servers over their loads, effects over machine time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from perfgate.metrics import METRICS
from perfgate.readers.layer_timings import LayerCurve, LayerPoint
from perfgate.report.chart.svg import (
    NARROW,
    OUTLINES,
    Drawing,
    Figure,
    LegendEntry,
    Panel,
    Scale,
    SvgElement,
    dot,
    find_span,
    line,
    make_figure,
    trace,
    write_label,
)
from perfgate.storage.rounding import format_percent
from perfgate.verdict.cells import CellResult
from perfgate.verdict.power import Curve

HEIGHT, ABOVE, BELOW = 250.0, 34.0, 46.0
# A picture of one field.
PLANE = 330.0
ROOFLINE = LegendEntry(sign=(line((1, 8), (21, 8), "roofline"),), text="roofline: what the card could do at best")
FRONT = LegendEntry(
    sign=(line((1, 8), (21, 8), "front"),), text="Pareto front: no other point has more tokens and a shorter ITL", hides="front"
)
ACROSS, UP = "output_tok_per_s", "median_itl_ms"
SIDES = {"base": ("circle", "base"), "candidate": ("diamond", "candidate")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Polyline:
    """A line through points, each with the hint that it shows: its name, the outline of its signs and its classes."""

    name: str
    outline: str
    style: str
    points: tuple[tuple[float, float, str], ...]

    @property
    def key(self) -> LegendEntry:
        """Its entry in a legend."""
        return LegendEntry(
            sign=(line((1, 8), (21, 8), f"curve {self.style}"), dot((11, 8), self.outline, f"{self.style} full")),
            text=self.name,
            hides=self.style.partition(" ")[0],
        )


def choose_sign(name: str, number: int) -> tuple[str, str]:
    """The outline and the class of the line called `name`, the one at place `number` of its picture."""
    return SIDES.get(name, (OUTLINES[number % len(OUTLINES)], f"series-{number % 7}"))


def draw_layers(curve: LayerCurve, number: int) -> Figure:
    """Microseconds over tokens, both logarithmic, with the roofline; beside it the share of the roofline that is reached."""
    names = list(dict.fromkeys(name for point in curve.points for name in point.samples_us))
    times = [_trace_layer(curve.points, name, index, as_share=False) for index, name in enumerate(names)]
    shares = [_trace_layer(curve.points, name, index, as_share=True) for index, name in enumerate(names)]
    floors = [(point.tokens, point.floor_us) for point in curve.points if point.floor_us]
    what = "Median time of one MoE layer for a batch of M tokens."
    more = " The second field says how near that comes to the least time that the card allows." if floors else ""
    return make_figure(
        f"layers-{number}",
        curve.shape,
        what + more,
        lambda width: _draw_layers(times, shares if floors else [], floors, width),
        [*(series.key for series in times), *([ROOFLINE] if floors else [])],
    )


def _trace_layer(points: Sequence[LayerPoint], name: str, index: int, *, as_share: bool) -> Polyline:
    outline, style = choose_sign(name, index)
    found = []
    for point in points:
        if name not in point.samples_us:
            continue
        time_us = median(point.samples_us[name])
        if not as_share:
            found.append((float(point.tokens), time_us, f"{name}, M={point.tokens}: {time_us:,.1f} us"))
        elif point.floor_us:
            share = 100 * point.floor_us / time_us
            found.append(
                (float(point.tokens), share, f"{name}, M={point.tokens}: {format_percent(share / 100, 0)} of the roofline")
            )
    return Polyline(name=name, outline=outline, style=style, points=tuple(found))


def _draw_layers(
    times: Sequence[Polyline], shares: Sequence[Polyline], floors: Sequence[tuple[float, float]], width: float
) -> Drawing:
    is_wide = width > NARROW
    split = width / 2 if is_wide and shares else width
    top = ABOVE if is_wide else 2 * ABOVE + HEIGHT + BELOW
    tokens = sorted({x for series in times for x, _, _ in series.points})
    x = Scale(low=tokens[0] / 1.3, high=tokens[-1] * 1.3, start=52.0, end=split - 14, is_log=True)
    values = [y for series in times for _, y, _ in series.points] + [floor for _, floor in floors]
    y = Scale(low=min(values) / 1.3, high=max(values) * 1.3, start=ABOVE + HEIGHT, end=ABOVE, is_log=True)
    panel = Panel(x=x, y=y, title="time of a layer, us", x_title="tokens M", ticks_x=_thin(tokens, x))
    shapes = [*panel.frame(), *_draw_floor(panel, floors), *draw_polylines(panel, times)]
    if shares:
        right = Scale(low=x.low, high=x.high, start=split + 52 if is_wide else 52.0, end=width - 14, is_log=True)
        up = Scale(low=0, high=100, start=top + HEIGHT, end=top)
        panel = Panel(x=right, y=up, title="share of the roofline reached, %", x_title="tokens M", ticks_x=_thin(tokens, right))
        shapes += [*panel.frame(), *draw_polylines(panel, shares)]
    bottom = (top if shares else ABOVE) + HEIGHT + BELOW
    return Drawing(width=width, height=bottom, shapes=tuple(shapes))


def _thin(tokens: Sequence[float], x: Scale) -> tuple[float, ...]:
    """The measured sizes as ticks, as many as fit beside one another."""
    shown: list[float] = []
    for count in tokens:
        if not shown or x.place(count) - x.place(shown[-1]) >= 34:
            shown.append(count)
    return tuple(shown)


def _draw_floor(panel: Panel, floors: Sequence[tuple[float, float]]) -> Iterator[SvgElement]:
    if floors:
        yield trace([(panel.x.place(tokens), panel.y.place(floor)) for tokens, floor in floors], "roofline")


def draw_polylines(panel: Panel, lines: Sequence[Polyline]) -> Iterator[SvgElement]:
    """Every line with a sign at each of its points; what lies beyond the panel stands at its edge."""
    for series in lines:
        points = [(panel.x.clamp(x), panel.y.clamp(y)) for x, y, _ in series.points]
        if len(points) > 1:
            yield trace(points, f"curve {series.style}")
        for (x, y), (_, _, hint) in zip(points, series.points, strict=True):
            yield dot((x, y), series.outline, f"{series.style} full", radius=4.0, hint=hint)


ServerPoints = Mapping[str, Sequence[tuple[str, float, float]]]
"""Load, throughput (tok/s) and median ITL (ms) of each point, by server."""


def trace_servers(cells: Sequence[CellResult]) -> ServerPoints:
    """The points of each server, in the order of the file; a cell without throughput or ITL has none."""
    points: dict[str, list[tuple[str, float, float]]] = {}
    for cell in cells:
        across, up = cell.find_level(ACROSS), cell.find_level(UP)
        if across is not None and up is not None:
            points.setdefault(cell.server, []).append((cell.load, across, up))
    return points


def draw_servers(cells: Sequence[CellResult]) -> Figure | None:
    """Throughput against median ITL, a point for each load and a line for each server; None without points."""
    points = trace_servers(cells)
    if not points:
        return None
    ranges = list(_find_ranges(cells))
    return make_figure(
        "servers",
        f"{METRICS[ACROSS].title} against {METRICS[UP].title}",
        "A point for each load, a line for each server, in the order of the file; bars span the rounds, each on a fresh start. "
        "Further right and further down is better.",
        lambda width: plot_servers(points, width, METRICS[ACROSS].unit, ranges),
        list_keys(points),
    )


Range = tuple[str, tuple[float, float], tuple[float, float]]
"""A server, and the lowest and highest of its rounds in throughput (tok/s) and median ITL (ms) under one load."""


def _find_ranges(cells: Sequence[CellResult]) -> Iterator[Range]:
    """The range over rounds of each cell that has more than one."""
    for cell in cells:
        across, up = cell.find_round_levels(ACROSS), cell.find_round_levels(UP)
        if min(len(across), len(up)) > 1:
            yield cell.server, (min(across), max(across)), (min(up), max(up))


def list_servers(points: ServerPoints) -> tuple[Polyline, ...]:
    """A line for each server."""
    across, up = METRICS[ACROSS], METRICS[UP]
    lines = []
    for index, (name, found) in enumerate(points.items()):
        outline, style = choose_sign(name, index)
        told = tuple((x, y, f"{name}, {load}: {x:,.1f} {across.unit}, {y:.2f} {up.unit}") for load, x, y in found)
        lines.append(Polyline(name=name, outline=outline, style=style, points=told))
    return tuple(lines)


def list_keys(points: ServerPoints) -> list[LegendEntry]:
    """The legend: each server, and the front where it tells servers apart."""
    return [*(server.key for server in list_servers(points)), *([FRONT] if len(points) > 1 else [])]


def find_front(points: ServerPoints) -> list[tuple[float, float]]:
    """Throughput and median ITL of the points of all servers that none of the others beats in both, by throughput."""
    found: list[tuple[float, float]] = []
    places = {(across, up) for cells in points.values() for _, across, up in cells}
    for across, up in sorted(places, key=lambda place: (-place[0], place[1])):
        if not found or up < found[-1][1]:
            found.append((across, up))
    return found[::-1]


def plot_servers(points: ServerPoints, width: float, x_title: str, ranges: Sequence[Range] = ()) -> Drawing:
    """The lines of the servers on a plane of `width` pixels, the load written beside each point, and bars for `ranges`.

    Of two servers and more the front lies behind them.
    """
    servers = list_servers(points)
    across = [x for server in servers for x, _, _ in server.points]
    up = [y for server in servers for _, y, _ in server.points]
    x = Scale(low=0.0, high=find_span(across)[1], start=52.0, end=width - 24)
    y = Scale(low=0.0, high=find_span(up, pad=0.1)[1], start=ABOVE + PLANE, end=ABOVE)
    panel = Panel(x=x, y=y, title=f"{METRICS[UP].title}, {METRICS[UP].unit}", x_title=x_title)
    loads = [
        write_label(x.clamp(a), y.clamp(b) - 9, load, "tick", "middle" if width > NARROW else "end")
        for found in points.values()
        for load, a, b in found
    ]
    styles = {server.name: server.style for server in servers}
    bars = [
        shape
        for name, across_ends, up_ends in ranges
        if name in styles
        for shape in _draw_bars(panel, across_ends, up_ends, styles[name])
    ]
    front = [trace([(x.clamp(a), y.clamp(b)) for a, b in find_front(points)], "front")] if len(points) > 1 else []
    shapes = (*panel.frame(), *front, *bars, *draw_polylines(panel, servers), *loads)
    return Drawing(width=width, height=ABOVE + PLANE + BELOW, shapes=shapes)


def _draw_bars(panel: Panel, across: tuple[float, float], up: tuple[float, float], style: str) -> tuple[SvgElement, SvgElement]:
    """A cross that spans both ranges."""
    middle = panel.x.clamp(sum(across) / 2), panel.y.clamp(sum(up) / 2)
    level = line((panel.x.clamp(across[0]), middle[1]), (panel.x.clamp(across[1]), middle[1]), f"whisker {style}")
    return level, line((middle[0], panel.y.clamp(up[0])), (middle[0], panel.y.clamp(up[1])), f"whisker {style}")


def list_effects(curves: Sequence[Curve]) -> tuple[Polyline, ...]:
    """A line for each metric: GPU-minutes of each look, and the smallest loss that it finds, in percent. Gates are solid."""
    lines = []
    for number, curve in enumerate(curves):
        title = METRICS[curve.metric].title
        outline, style = choose_sign(title, number)
        points = tuple(
            (
                reach.minutes,
                100 * reach.smallest_effect,
                f"{title}, {reach.blocks} blocks, {reach.minutes:.1f} GPU-minutes: {format_percent(reach.smallest_effect, 2)}",
            )
            for reach in curve.reaches
        )
        lines.append(Polyline(name=title, outline=outline, style=style if curve.gating else f"{style} dotted", points=points))
    return tuple(lines)


def plot_effects(curves: Sequence[Curve], width: float) -> Drawing:
    """The smallest loss that each look finds over its cost, on a plane of `width` pixels."""
    lines = list_effects(curves)
    x = Scale(low=0.0, high=find_span(x for one in lines for x, _, _ in one.points)[1], start=52.0, end=width - 24)
    y = Scale(low=0.0, high=find_span(y for one in lines for _, y, _ in one.points)[1], start=ABOVE + PLANE, end=ABOVE)
    panel = Panel(x=x, y=y, title="smallest loss found with 90 % power, %", x_title="GPU-minutes")
    return Drawing(width=width, height=ABOVE + PLANE + BELOW, shapes=(*panel.frame(), *draw_polylines(panel, lines)))
