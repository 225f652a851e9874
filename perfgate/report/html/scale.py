"""From values to pixels: a linear or logarithmic scale with round ticks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

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


def find_span(values: Iterable[float], *, pad: float = 0.06, least: float = 1e-9) -> tuple[float, float]:
    """The range of `values`, widened by `pad` of it; values that hardly differ get one percent around them.

    What is no size of anything is left out: broken evidence is shown too, and must not drive the rest off the picture.
    """
    found = [value for value in values if abs(value) < ABSURD]
    if not found:
        return 0.0, 1.0
    low, high = min(found), max(found)
    room = max((high - low) * pad, abs(high) * 0.005, least)
    return low - room, high + room


def show_number(value: float) -> str:
    """Write a tick: thousands with commas, no digit that says nothing."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
