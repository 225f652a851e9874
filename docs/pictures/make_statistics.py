"""Draw the two pictures of docs/explanation/statistics.md with the charts of the reports.

The blocks are those of a session that an H200 measured; the number line is in margins, and shows no session.

Run as `python docs/pictures/make_statistics.py docs/pictures`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from perfgate.core import Arm, Outcome, Role, Window
from perfgate.report.chart.picture import save_picture
from perfgate.report.chart.svg import Drawing, LegendEntry, Scale, SvgElement, box, dot, line, write_label
from perfgate.results.results import load_results

ROOT = Path(__file__).parents[2]
SESSION = ROOT / "benchmarks/h200/serving/routed/mxfp4-closed-c16-aa-1"
WIDTH = 820.0
ROW, LANE = 62.0, 30.0
COLOURS = {
    Outcome.REGRESSION: "candidate",
    Outcome.INCONCLUSIVE: "series-4",
    Outcome.PASS: "series-2",
    Outcome.IMPROVED: "base",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A metric in margins, positive for slower: the ends of its interval, its estimate, and from where it fails."""

    outcome: Outcome
    words: str
    low: float
    middle: float
    high: float
    fails_from: float


EXAMPLES = (
    Example(
        outcome=Outcome.REGRESSION,
        words="estimate beyond the red line",
        low=0.7,
        middle=1.25,
        high=1.8,
        fails_from=0.8,
    ),
    Example(outcome=Outcome.PASS, words="the bar ends before the margin", low=-0.4, middle=0.15, high=0.7, fails_from=0.8),
    Example(
        outcome=Outcome.INCONCLUSIVE, words="too wide for either: more blocks", low=-0.5, middle=0.7, high=1.9, fails_from=1.4
    ),
    Example(
        outcome=Outcome.IMPROVED, words="a gain beyond the mirrored line", low=-1.9, middle=-1.3, high=-0.7, fails_from=0.8
    ),
)


def draw_number_line() -> Drawing:
    """Four outcomes on one axis: estimate, interval, the line from which a metric fails, and the margin."""
    x = Scale(low=-2.0, high=2.2, start=250.0, end=WIDTH - 20)
    bottom = 26 + ROW * len(EXAMPLES)
    shapes: list[SvgElement] = []
    marks = {0.0: ("no change", "zero"), 0.5: ("half", "grid"), 1.0: ("margin", "half")}
    for value, (word, style) in marks.items():
        shapes += [
            line((x.place(value), 22), (x.place(value), bottom), style),
            write_label(x.place(value), 14, word, "tick", "middle"),
        ]
    shapes += [write_label(x.start, 14, "faster", "tick"), write_label(x.end, 14, "slower", "tick", "end")]
    for number, example in enumerate(EXAMPLES):
        shapes.extend(_draw_example(example, x, 26 + ROW * (number + 0.5)))
    return Drawing(width=WIDTH, height=bottom + 12, shapes=tuple(shapes))


def _draw_example(example: Example, x: Scale, at: float) -> Iterator[SvgElement]:
    style = COLOURS[example.outcome]
    yield write_label(14, at - 3, example.outcome.value, "panel-title")
    yield write_label(14, at + 14, example.words, "tick")
    sign = -1 if example.outcome is Outcome.IMPROVED else 1
    limit = x.place(sign * example.fails_from)
    yield line((limit, at - 18), (limit, at + 18), "limit")
    yield line((x.place(example.low), at), (x.place(example.high), at), f"level {style}")
    for end in (example.low, example.high):
        yield line((x.place(end), at - 6), (x.place(end), at + 6), f"level {style}")
    yield dot((x.place(example.middle), at), "diamond", f"{style} full", radius=6)


def draw_blocks(windows: Sequence[Window]) -> Drawing:
    """Each block of a session as two lanes over its seconds: servers that start, warm-up, and windows in turns."""
    numbers = sorted({window.block for window in windows})
    begun = [0.0, *(max(window.ended_s for window in windows if window.block == number) for number in numbers)]
    longest_s = max(after - before for before, after in pairwise(begun))
    x = Scale(low=0.0, high=longest_s, start=130.0, end=600.0)
    height = 2 * LANE + 44
    shapes: list[SvgElement] = []
    for place, number in enumerate(numbers):
        own = [window for window in windows if window.block == number]
        shapes.extend(_draw_block(own, begun[place], x, 34 + place * height))
    bottom = 34 + len(numbers) * height
    shapes.extend(write_label(x.place(tick), bottom - 14, f"{tick:.0f}", "tick", "middle") for tick in x.list_ticks(6))
    shapes.append(write_label(x.end, bottom + 4, "seconds of the block", "tick", "end"))
    return Drawing(width=WIDTH, height=bottom + 14, shapes=tuple(shapes))


def _draw_block(windows: Sequence[Window], begun_s: float, x: Scale, top: float) -> Iterator[SvgElement]:
    first = min(windows, key=lambda window: window.begun_s)
    yield write_label(14, top + LANE, f"block {first.block}", "panel-title")
    yield box((x.place(0), top), (x.place(first.begun_s - begun_s) - 3, top + 2 * LANE - 6), "block")
    yield write_label(x.place(0) + 8, top + LANE + 1, "fresh servers start", "tick")
    for window in windows:
        lane = top + LANE * list(Arm).index(window.arm)
        style = "full" if window.role is Role.MEASURED else "hollow"
        ends = (x.place(window.begun_s - begun_s) + 1, x.place(window.ended_s - begun_s) - 1)
        yield box((ends[0], lane), (ends[1], lane + LANE - 8), f"{window.arm.value} {style}")
    for arm in Arm:
        yield write_label(x.start - 8, top + LANE * list(Arm).index(arm) + 15, arm.value, "tick", "end")
    order = sorted((window for window in windows if window.role is Role.MEASURED), key=lambda window: window.begun_s)
    letters = "".join("A" if window.arm is order[0].arm else "B" for window in order)
    yield write_label(x.end + 16, top + 12, f"{letters}, A is the {order[0].arm.value}", "tick")
    yield write_label(x.end + 16, top + 32, f"D{first.block} = y(candidate)", "panel-title")
    yield write_label(x.end + 16, top + 49, "- y(base), y a median", "panel-title")


def list_keys() -> Iterator[LegendEntry]:
    """The signs of the blocks."""
    for arm in Arm:
        yield LegendEntry(sign=(box((3, 2), (20, 14), f"{arm.value} full"),), text=f"a measured window of the {arm.value}")
    yield LegendEntry(sign=(box((3, 2), (20, 14), "base hollow"),), text="warm-up, discarded")


def draw(folder: Path) -> None:
    """Write both pictures into `folder`."""
    _, session = load_results(SESSION)
    title = "What a metric's interval, its red line and its margin decide"
    red = LegendEntry(sign=(line((11, 0), (11, 16), "limit"),), text="fails from: beyond noise, and at least half the margin")
    dotted = LegendEntry(sign=(line((11, 0), (11, 16), "half"),), text="the margin")
    save_picture(folder / "number-line.svg", title, draw_number_line(), (red, dotted))
    blocks = "Two blocks of a measured session: fresh servers, warm-up, windows in turns, one number each"
    save_picture(folder / "blocks.svg", blocks, draw_blocks(session.windows), list_keys())


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
