"""Windows in the order of time: both arms' levels, and beneath them what the machine did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

from perfgate.core import Arm, Window
from perfgate.metrics import METRICS
from perfgate.report.chart.svg import (
    NARROW,
    TITLE_LINE,
    Drawing,
    Figure,
    LegendEntry,
    Panel,
    PanelGroup,
    Scale,
    SvgElement,
    box,
    cross,
    dot,
    find_left,
    find_span,
    fold_title,
    line,
    make_figure,
    show_number,
    write_label,
)
from perfgate.report.html.places import OUTLINES, Placed, WindowUse
from perfgate.results.readings import FRONT_END_SHARE, SM_CLOCK_MHZ, THROTTLED_SHARE

ABOVE, BELOW = 46.0, 48.0
GAP = 34.0
# Beyond this many ranges of the measured windows, a cold window would flatten the rest: it stands at the edge as an arrow.
MAX_COLD_SPANS = 1.5
UNITS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
STYLES = {
    WindowUse.JUDGED: "full",
    WindowUse.COLD: "hollow",
    WindowUse.REPLACED: "struck",
    WindowUse.OTHER_WORK: "struck",
    WindowUse.UNUSED: "faint",
    WindowUse.CUT_OFF: "struck faint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One panel: a number of each window, and another that it reaches to, such as the lowest clock beside the usual one.

    `unit` is as it stands behind the name, empty for a plain count.
    """

    name: str
    unit: str = ""
    height: float
    read: Callable[[Window], float | None]
    reach: Callable[[Window], float | None] | None = None
    show: Callable[[float], str] = show_number
    has_levels: bool = False

    @property
    def title(self) -> str:
        """Name and unit, over the panel."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


def _read(reading: str, scale: float = 1.0) -> Callable[[Window], float | None]:
    def read(window: Window) -> float | None:
        found = window.telemetry.get(reading)
        return None if found is None else found * scale

    return read


TELEMETRY = (
    Track(name="GPU clock", unit="MHz (whisker: lowest)", height=66, read=_read(SM_CLOCK_MHZ), reach=_read("sm_clock_min_mhz")),
    Track(name="GPU power", unit="W (whisker: highest)", height=66, read=_read("power_w"), reach=_read("power_max_w")),
    Track(name="GPU temperature", unit="\N{DEGREE SIGN}C", height=52, read=_read("temperature_c")),
    Track(name="Clock held back by heat or supply", unit="% of samples", height=52, read=_read(THROTTLED_SHARE, 100)),
    Track(name="CPU time of other processes", unit="%", height=52, read=_read("foreign_cpu_share", 100)),
    Track(name="Front end's thread in its busiest second", unit="% of a core", height=52, read=_read(FRONT_END_SHARE, 100)),
    Track(name="Requests waiting in the engine", height=52, read=_read("queued_requests")),
)


def draw_timeline(placed: Sequence[Placed], metrics: Sequence[str]) -> Figure | None:
    """The metrics' windows over time, with telemetry beneath; None where no window has a number."""
    levels = [track for track in map(_track, metrics) if _list_values(track, placed)]
    if not levels:
        return None
    watched = [track for track in TELEMETRY if _list_values(track, placed)]
    moving = [track for track in watched if any(_list_values(track, placed))]
    tracks = (*levels, *moving)
    return make_figure(
        "timeline",
        "Windows in the order of time",
        "Each mark is one window. Shaded fields are blocks, each with one fresh server per arm."
        + (" The lower panels show the machine while each window ran." if moving else "")
        + _name_idle([track for track in watched if track not in moving]),
        lambda width: _draw(placed, tracks, width),
        _list_keys(placed),
    )


def _name_idle(tracks: Sequence[Track]) -> str:
    """What was watched and never more than zero needs no panel."""
    return f" Zero in every window: {'; '.join(track.title for track in tracks)}." if tracks else ""


def _list_keys(placed: Iterable[Placed]) -> Iterator[LegendEntry]:
    """The signs that occur."""
    found = tuple(placed)
    uses, arms = {one.use for one in found}, {one.window.arm for one in found}
    for arm in (arm for arm in Arm if arm in arms):
        sign = dot((11, 8), OUTLINES[arm], f"{arm.value} full")
        yield LegendEntry(sign=(sign,), text=arm.value, hides=arm.value)
    if WindowUse.JUDGED in uses:
        yield LegendEntry(sign=(line((2, 8), (20, 8), "level base"),), text="median of a server start")
    if WindowUse.COLD in uses:
        signs = (dot((6, 8), "circle", "base hollow"), dot((17, 8), "diamond", "candidate hollow"))
        yield LegendEntry(sign=signs, text="cold: warm-up, discarded")
    if WindowUse.UNUSED in uses:
        yield LegendEntry(sign=(dot((11, 8), "circle", "base faint"),), text="measured, not judged")
    if any(one.is_rerun for one in found):
        signs = (dot((11, 8), "circle", "base full"), dot((11, 8), "circle", "ring", radius=7.5))
        yield LegendEntry(sign=signs, text="re-run")
    if uses & {WindowUse.REPLACED, WindowUse.CUT_OFF}:
        yield LegendEntry(sign=(cross((11, 8), "base struck"),), text="stalled or cut off, not judged")
    if WindowUse.OTHER_WORK in uses:
        yield LegendEntry(sign=(cross((11, 8), "base struck"),), text="held other work, not judged")


def _track(name: str) -> Track:
    metric = METRICS[name]
    return Track(
        name=metric.title,
        unit=f"{metric.unit} ({metric.better.value} is better)",
        height=128,
        read=lambda window: window.run.values.get(name),
        show=lambda value: f"{value:,.{0 if value >= 100 else metric.decimals}f}",
        has_levels=True,
    )


def _list_values(track: Track, placed: Iterable[Placed]) -> list[float]:
    readers = [read for read in (track.read, track.reach) if read]
    found = (read(one.window) for one in placed for read in readers)
    return [value for value in found if value is not None]


def _draw(placed: Sequence[Placed], tracks: Sequence[Track], width: float) -> Drawing:
    least, right = (64.0, width - 14.0) if width > NARROW else (52.0, width - 8.0)
    scales = [(track, _choose_scale(track, placed, ABOVE)) for track in tracks]
    left = find_left((track.show(end) for track, scale in scales for end in (scale.low, scale.high)), least)
    times = (second for one in placed for second in (one.window.begun_s, one.window.ended_s))
    begun_s, ended_s = find_span(times, pad=0.02)
    unit_s, unit = next((size, word) for least, size, word in UNITS if ended_s >= least)
    x = Scale(low=begun_s / unit_s, high=ended_s / unit_s, start=left, end=right)
    # A title that may not fit is folded, and stands higher for it.
    more = {track.title: TITLE_LINE * (len(fold_title(track.title, left, right)) - 1) for track in tracks}
    bottom = ABOVE - GAP + sum(more[track.title] + track.height + GAP for track in tracks)
    top, panels = ABOVE, []
    for track in tracks:
        top += more[track.title]
        y = _choose_scale(track, placed, top)
        panel = Panel(x=x, y=y, title=track.title, ticks_x=(), show_y=track.show)
        shapes = (*panel.frame(), *_draw_track(track, placed, panel, unit_s))
        panels.append(PanelGroup(name=track.name, height=more[track.title] + track.height + GAP, shapes=shapes))
        top += track.height + GAP
    foot = Panel(x=x, y=Scale(low=0, high=1, start=bottom, end=bottom), title="", x_title=f"{unit} since the session began")
    panels.append(PanelGroup(name="", height=BELOW, shapes=tuple(foot.draw_axis())))
    blocks = tuple(_draw_blocks(placed, x, unit_s, bottom))
    return Drawing(width=width, height=bottom + BELOW, shapes=blocks, panels=tuple(panels))


def _choose_scale(track: Track, placed: Sequence[Placed], top: float) -> Scale:
    """Span what counts; what was discarded only as far as it leaves room for the rest."""
    counted = _list_values(track, [one for one in placed if one.use in {WindowUse.JUDGED, WindowUse.UNUSED}])
    everything = _list_values(track, placed)
    low, high = find_span(counted or everything)
    if counted and track.has_levels:
        room = MAX_COLD_SPANS * (high - low)
        low, high = find_span([low, high, *(value for value in everything if low - room <= value <= high + room)], pad=0)
    elif everything:
        low, high = find_span(everything)
    return Scale(low=max(low, 0.0) if min(everything) >= 0 else low, high=high, start=top + track.height, end=top)


def _draw_blocks(placed: Sequence[Placed], x: Scale, unit_s: float, bottom: float) -> Iterator[SvgElement]:
    ordered = sorted(placed, key=lambda one: (one.window.block, one.window.begun_s))
    spans = []
    for number, group in groupby(ordered, key=lambda one: one.window.block):
        windows = [one.window for one in group]
        ends = min(window.begun_s for window in windows), max(window.ended_s for window in windows)
        spans.append((number, x.clamp(ends[0] / unit_s), x.clamp(ends[1] / unit_s)))
    # Blocks that follow at once would look like one.
    gaps = [after - before for (_, _, before), (_, after, _) in pairwise(spans)]
    pad = min([4.0, *((gap - 3) / 2 for gap in gaps)])
    for number, begun, ended in spans:
        yield box((begun - pad, ABOVE - 4), (ended + pad, bottom), "block")
        yield write_label(
            (begun + ended) / 2, 16, f"block {number}" if ended - begun > 48 else str(number), "tick strong", "middle"
        )


def _draw_track(track: Track, placed: Sequence[Placed], panel: Panel, unit_s: float) -> Iterator[SvgElement]:
    if track.has_levels:
        yield from _draw_levels(track, placed, panel, unit_s)
    for one in placed:
        value = track.read(one.window)
        if value is not None:
            yield from _draw_window(track, one, panel, value, panel.x.clamp(one.middle_s / unit_s))


def _draw_levels(track: Track, placed: Sequence[Placed], panel: Panel, unit_s: float) -> Iterator[SvgElement]:
    """A line at the median of each start's judged windows: the number that the verdict is made of."""
    judged = [one.window for one in placed if one.use is WindowUse.JUDGED]
    ordered = sorted(judged, key=lambda window: (window.start, window.begun_s))
    for (_, arm), group in groupby(ordered, key=lambda window: (window.start, window.arm)):
        windows = [window for window in group if track.read(window) is not None]
        if windows:
            level = panel.y.clamp(median(track.read(window) or 0.0 for window in windows))
            ends = (windows[0].begun_s / unit_s, windows[-1].ended_s / unit_s)
            yield line((panel.x.clamp(ends[0]), level), (panel.x.clamp(ends[1]), level), f"level {arm.value}")


def _draw_window(track: Track, one: Placed, panel: Panel, value: float, x: float) -> Iterator[SvgElement]:
    arm = one.window.arm
    hint = f"{one.label}: {track.show(value)}"
    reach = track.reach(one.window) if track.reach else None
    if reach is not None:
        yield line((x, panel.y.clamp(value)), (x, panel.y.clamp(reach)), f"whisker {arm.value}")
    y, style, radius = panel.y.clamp(value), f"{arm.value} {STYLES[one.use]}", 4.5 if track.has_levels else 3.0
    if not panel.y.holds(value):
        is_high = value > panel.y.high
        hint += " (off the scale)"
        yield dot((x, y + (6 if is_high else -6)), "up" if is_high else "down", style, hint=hint)
    elif one.use in {WindowUse.REPLACED, WindowUse.CUT_OFF}:
        yield cross((x, y), style, hint=hint)
    else:
        yield dot((x, y), OUTLINES[arm], style, radius=radius, hint=hint)
    if one.is_rerun:
        yield dot((x, y), "circle", "ring", radius=radius + 3)
