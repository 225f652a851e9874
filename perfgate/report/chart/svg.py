"""SVG as values: shapes that a template writes out, and the frame of axes that every figure shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, cos, floor, log10, pi, sin

from perfgate.report.chart.letters import fold_text, measure_text
from perfgate.report.escape import Safe

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
# A float's last bit must not drop the tick at the end of a scale.
SLACK = 1e-9
ABSURD = 1e100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps `low` to the pixel `start` and `high` to `end`; `low` is below `high`, and above zero for a logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where `value` stands, in pixels; it may lie outside."""
        low, high, at = (log10(x) for x in (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def clamp(self, value: float) -> float:
        """Where `value` stands, or the end that it lies beyond."""
        return self.place(min(max(value, self.low), self.high))

    def holds(self, value: float) -> bool:
        """Whether `value` lies within the scale."""
        return self.low <= value <= self.high

    def list_ticks(self, count: int) -> tuple[float, ...]:
        """Round values within the scale, about `count` of them."""
        if self.is_log:
            ticks = self._list_powers(count)
            if len(ticks) > 1:
                return ticks
        step = round_step(self.high - self.low, count)
        first, last = ceil(self.low / step - SLACK), floor(self.high / step + SLACK)
        return tuple(number * step for number in range(first, last + 1))

    def _list_powers(self, count: int) -> tuple[float, ...]:
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            ticks = [factor * 10.0**power for power in decades for factor in factors]
            inside = tuple(tick for tick in ticks if self.low * (1 - SLACK) <= tick <= self.high * (1 + SLACK))
            if len(inside) <= count:
                return inside
        return inside


def round_step(span: float, count: int) -> float:
    """The step of STEPS times a power of ten that cuts `span` into a number of pieces nearest to `count`."""
    power = 10.0 ** floor(log10(span / count))
    return min((step * power for step in STEPS), key=lambda step: abs(span / step - count))


def find_span(values: Iterable[float], *, pad: float = 0.06) -> tuple[float, float]:
    """The range of `values`, widened by `pad` of it; values that hardly differ get one percent around them.

    Numbers beyond ABSURD are left out: pages show broken evidence too, and one such number would flatten all others.
    """
    found = [value for value in values if abs(value) < ABSURD]
    if not found:
        return 0.0, 1.0
    low, high = min(found), max(found)
    room = max((high - low) * pad, abs(high) * 0.005, 1e-9)
    return low - room, high + room


def show_number(value: float) -> str:
    """Write a tick: four significant digits, or a whole number with commas from a thousand on."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


Point = tuple[float, float]

WIDE, NARROW = 1000.0, 358.0
"""Widths of a figure in pixels: each is drawn twice, for a screen or paper and for a phone, so that letters stay readable."""

TITLE_SIZE, TITLE_LINE, TICK_SIZE = 13.0, 16.0, 12.0
"""Letters and lines of a panel's title, and letters of its ticks, in pixels; the page's style sheet has the same sizes."""
TICK_GAP = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgElement:
    """One SVG element. `style` names its classes, `hint` appears where a pointer rests on it."""

    tag: str
    style: str
    at: Mapping[str, float | str]
    text: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelGroup:
    """The shapes of one panel of several that stand above each other.

    A reader may hide it by its `name`; what stands below then moves up by `height` pixels. Without a name it always shows.
    """

    name: str
    height: float
    shapes: tuple[SvgElement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes on a plane of `width` times `height` pixels, and on top of them panels from above to below."""

    width: float
    height: float
    shapes: tuple[SvgElement, ...]
    panels: tuple[PanelGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """One entry of a legend: a sign, and what it means. `hides` is the class of the shapes that a reader may hide by it."""

    sign: tuple[SvgElement, ...]
    text: str
    hides: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture with its words; `name` is its anchor in the page. It is drawn for two widths."""

    name: str
    title: str
    caption: str
    drawings: tuple[Drawing, Drawing]
    keys: tuple[LegendEntry, ...] = ()


def make_figure(
    name: str, title: str, caption: str, draw: Callable[[float], Drawing], keys: Iterable[LegendEntry] = ()
) -> Figure:
    """Draw a figure for both widths."""
    return Figure(name=name, title=title, caption=caption, drawings=(draw(WIDE), draw(NARROW)), keys=tuple(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A field with two axes, its `title` above it. Ticks that are not given are chosen."""

    x: Scale
    y: Scale
    title: str
    x_title: str = ""
    ticks_x: tuple[float, ...] | None = None
    ticks_y: tuple[float, ...] | None = None
    show_x: Callable[[float], str] = field(default=show_number)
    show_y: Callable[[float], str] = field(default=show_number)

    def frame(self) -> Iterator[SvgElement]:
        """Grid, ticks, titles; the marks come on top."""
        left, right = self.x.start, self.x.end
        top, bottom = sorted((self.y.start, self.y.end))
        lines = fold_title(self.title, left, right)
        for number, words in enumerate(reversed(lines)):
            yield write_label(left, top - 9 - number * TITLE_LINE, words, "panel-title")
        for tick in self.y.list_ticks(min(6, max(2, int((bottom - top) / 30)))) if self.ticks_y is None else self.ticks_y:
            at = self.y.place(tick)
            yield line((left, at), (right, at), "grid")
            yield write_label(left - TICK_GAP, at + 4, self.show_y(tick), "tick", "end")
        yield from self.draw_axis()

    def draw_axis(self) -> Iterator[SvgElement]:
        """The lower axis with ticks and title."""
        left, right = self.x.start, self.x.end
        bottom = max(self.y.start, self.y.end)
        for tick in self.x.list_ticks(max(2, int((right - left) / 78))) if self.ticks_x is None else self.ticks_x:
            at = self.x.place(tick)
            yield line((at, bottom), (at, bottom + 4), "axis")
            yield write_label(at, bottom + 17, self.show_x(tick), "tick", "middle")
        yield line((left, bottom), (right, bottom), "axis")
        if self.x_title:
            yield write_label(right, bottom + 33, self.x_title, "tick", "end")


def fold_title(title: str, left: float, right: float) -> list[str]:
    """The lines of the title of a panel between two edges."""
    return fold_text(title, right - left, TITLE_SIZE)


def find_left(labels: Iterable[str], least: float) -> float:
    """Where a panel at the left edge begins: `least`, or further in where labels of its upright axis need the room."""
    return max(least, *(TICK_GAP + measure_text(label, TICK_SIZE) for label in labels))


def line(start: Point, end: Point, style: str, hint: str = "") -> SvgElement:
    """A straight line."""
    at = {"x1": _px(start[0]), "y1": _px(start[1]), "x2": _px(end[0]), "y2": _px(end[1])}
    return SvgElement(tag="line", style=style, at=at, hint=hint)


def box(corner: Point, opposite: Point, style: str, hint: str = "") -> SvgElement:
    """A rectangle between two corners."""
    (x1, y1), (x2, y2) = corner, opposite
    at = {"x": _px(min(x1, x2)), "y": _px(min(y1, y2)), "width": _px(abs(x2 - x1)), "height": _px(abs(y2 - y1))}
    return SvgElement(tag="rect", style=style, at=at, hint=hint)


def write_label(x: float, y: float, text: str, style: str, anchor: str = "start") -> SvgElement:
    """A line of text; `anchor` says which end stands at `x`: start, middle or end."""
    return SvgElement(tag="text", style=style, at={"x": _px(x), "y": _px(y), "text-anchor": anchor}, text=text)


def trace(points: Sequence[Point], style: str, hint: str = "") -> SvgElement:
    """A line through points."""
    return SvgElement(tag="path", style=style, at={"d": _join(points)}, hint=hint)


# Signs differ by outline, not by colour alone: for the colour-blind, and for paper.
_CORNERS = {"diamond": (4, 0.0, 1.2), "square": (4, pi / 4, 1.25), "up": (3, 0.0, 1.25), "down": (3, pi, 1.25)}
OUTLINES = ("circle", *_CORNERS)


def dot(at: Point, outline: str, style: str, *, radius: float = 4.5, hint: str = "") -> SvgElement:
    """A sign at a point; `outline` is one of OUTLINES."""
    x, y = at
    if outline == "circle":
        return SvgElement(tag="circle", style=f"mark {style}", at={"cx": _px(x), "cy": _px(y), "r": radius}, hint=hint)
    count, turn, size = _CORNERS[outline]
    angles = (turn + 2 * pi * number / count for number in range(count))
    points = [(x + radius * size * sin(angle), y - radius * size * cos(angle)) for angle in angles]
    return SvgElement(tag="path", style=f"mark {style}", at={"d": Safe(_join(points) + "Z")}, hint=hint)


def cross(at: Point, style: str, *, hint: str = "") -> SvgElement:
    """A sign for what does not count."""
    (x, y), r = at, 4.0
    strokes = [_join([(x - r, y - r), (x + r, y + r)]), _join([(x - r, y + r), (x + r, y - r)])]
    return SvgElement(tag="path", style=f"mark {style}", at={"d": Safe("".join(strokes))}, hint=hint)


def _join(points: Sequence[Point]) -> Safe:
    return Safe("M" + "L".join(f"{_px(x)} {_px(y)}" for x, y in points))


def _px(value: float) -> float | int:
    """A tenth of a pixel is enough, and short."""
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded
