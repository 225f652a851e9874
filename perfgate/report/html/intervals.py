"""One interval against its margin and noise band: a strip for a row of the table, worse to the right."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, log1p

from perfgate.core import Judgement
from perfgate.report.html.scale import Scale
from perfgate.report.html.svg import Drawing, Shape, box, dot, line, trace, write

WIDTH, HEIGHT = 260.0, 28.0
MIDDLE = HEIGHT / 2
# As in the comment: two margins of gain to three of loss, so that rows of different metrics can be read against each other.
AXIS = Scale(low=-2.0, high=3.0, start=8.0, end=WIDTH - 8.0)


def draw_strip(judgement: Judgement, bounds: tuple[float, float, float]) -> Drawing:
    """Draw an interval in units of its margin; `bounds`: low end, estimate and high end as logarithms, positive for worse."""
    low, middle, high = (bound / log1p(judgement.margin) for bound in bounds)
    return Drawing(width=WIDTH, height=HEIGHT, shapes=(*_draw_limits(judgement), *_draw_interval(judgement, low, middle, high)))


def draw_ruler() -> Drawing:
    """What stands above the column of strips."""
    at = {"better": AXIS.low, "0": 0.0, "margin": 1.0, "worse": AXIS.high}
    anchors = {"better": "start", "worse": "end"}
    words = (write(AXIS.place(value), 13, word, "tick", anchors.get(word, "middle")) for word, value in at.items())
    return Drawing(width=WIDTH, height=18.0, shapes=tuple(words))


def _draw_limits(judgement: Judgement) -> Iterator[Shape]:
    if judgement.band is not None and isfinite(judgement.band) and judgement.band > 0:
        reach = log1p(judgement.band) / log1p(judgement.margin)
        yield box(
            (AXIS.clamp(-reach), 3), (AXIS.clamp(reach), HEIGHT - 3), "band", hint="noise band: equal builds differ by this"
        )
    yield line((AXIS.place(0), 0), (AXIS.place(0), HEIGHT), "zero")
    yield line((AXIS.place(0.5), 5), (AXIS.place(0.5), HEIGHT - 5), "half", hint="half the margin: proven beyond it is a loss")
    yield line((AXIS.place(1), 0), (AXIS.place(1), HEIGHT), "limit", hint="the margin")


def _draw_interval(judgement: Judgement, low: float, middle: float, high: float) -> Iterator[Shape]:
    style = f"outcome-{judgement.outcome.value.lower()}"
    yield line((AXIS.clamp(low), MIDDLE), (AXIS.clamp(high), MIDDLE), f"interval {style}")
    for end in (low, high):
        if AXIS.holds(end):
            yield line((AXIS.place(end), MIDDLE - 5), (AXIS.place(end), MIDDLE + 5), f"interval {style}")
        else:
            yield _point_beyond(end, f"arrow {style}")
    if AXIS.holds(middle):
        yield dot((AXIS.place(middle), MIDDLE), "diamond", style, radius=5)
    else:
        yield _point_beyond(middle, f"mark {style}", size=7)


def _point_beyond(value: float, style: str, size: float = 5) -> Shape:
    """An arrow at the end of the scale that `value` lies beyond."""
    at, away = AXIS.clamp(value), 1 if value > AXIS.high else -1
    corners = [(at - away, MIDDLE - size), (at + away * (size - 1), MIDDLE), (at - away, MIDDLE + size)]
    return trace(corners, style, hint="goes on beyond the scale")
