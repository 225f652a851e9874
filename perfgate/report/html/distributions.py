"""How the latencies of both arms are distributed: the share of answers that came in time, and its tail enlarged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfgate.core import Arm
from perfgate.report.chart.svg import (
    NARROW,
    Drawing,
    Figure,
    LegendEntry,
    Panel,
    Scale,
    SvgElement,
    dot,
    find_left,
    find_span,
    line,
    make_figure,
    trace,
)
from perfgate.report.html.places import OUTLINES, Placed
from perfgate.report.table import Table
from perfgate.report.words import wording
from perfgate.results.machine_samples import Samples, pool_samples, read_samples
from perfgate.storage.rounding import format_percent

Values = NDArray[np.float64]

BODY = tuple(number / 120 for number in range(121))
TAIL_FROM = 0.9
TAIL_POINTS = 90
# Beyond these shares the few would push all others into a corner; the tail shows the slow ones.
BODY_SHOWN = (0.01, 0.985)
MARKED = (0.5, 0.9, 0.99, 0.999)
TABLED = (0.5, 0.9, 0.95, 0.99, 0.999)
HEIGHT, ABOVE, BELOW = 210.0, 34.0, 46.0
# Fewer samples than this beyond a quantile say nothing of it.
MIN_BEYOND = 5

KEYS = (
    *(
        LegendEntry(
            sign=(line((1, 8), (21, 8), f"curve {arm.value}"), dot((11, 8), OUTLINES[arm], f"{arm.value} full")),
            text=arm.value,
            hides=arm.value,
        )
        for arm in Arm
    ),
    LegendEntry(sign=(line((1, 8), (21, 8), "thread base"),), text="one server start each"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One kind of latency: a picture, its quantiles as a table, and where the arms differ over the quantiles."""

    figure: Figure
    table: Table
    difference: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arms:
    """Sorted milliseconds: of each arm in all, and of each of its starts."""

    pooled: Mapping[Arm, Values]
    starts: Sequence[tuple[Arm, Values]]


def read_distributions(evidence: Iterable[Placed]) -> tuple[Distribution, ...]:
    """Read the raw samples of windows; empty where the load generator kept none."""
    starts: dict[tuple[int, Arm], list[Samples]] = {}
    for one in evidence:
        samples = read_samples(one.window.run.source)
        if samples is not None:
            starts.setdefault((one.window.start, one.window.arm), []).append(samples)
    pooled = [(arm, pool_samples(parts)) for (_, arm), parts in sorted(starts.items())]
    kinds: tuple[tuple[str, str, Callable[[Samples], Values]], ...] = (
        ("itl", "Time between tokens (ITL)", lambda samples: samples.itl_ms),
        ("ttft", "Time to the first token (TTFT)", lambda samples: samples.ttft_ms),
    )
    return tuple(
        _build(name, title, arms) for name, title, pick in kinds if (arms := _gather([(arm, pick(one)) for arm, one in pooled]))
    )


def _gather(starts: Sequence[tuple[Arm, Values]]) -> _Arms | None:
    found = [(arm, values) for arm, values in starts if values.size]
    arms = [arm for arm in Arm if any(arm is other for other, _ in found)]
    if not arms:
        return None
    pooled = {arm: np.sort(np.concatenate([values for other, values in found if other is arm])) for arm in arms}
    return _Arms(pooled=pooled, starts=found)


def _build(name: str, title: str, arms: _Arms) -> Distribution:
    counts = " and ".join(f"{values.size:,} of the {arm.value}" for arm, values in arms.pooled.items())
    figure = make_figure(
        name,
        title,
        f"Share of samples within a time, of {counts}. The second field shows the slowest tenth, both axes logarithmic.",
        lambda width: _draw(arms, width),
        KEYS,
    )
    return Distribution(figure=figure, table=tabulate_quantiles(arms.pooled), difference=_draw_difference(name, title, arms))


SHIFTED = tuple(number / 100 for number in range(2, 99, 2))
"""The shares at which the arms are subtracted: beyond them single samples decide."""


def _draw_difference(name: str, title: str, arms: _Arms) -> Figure | None:
    """Candidate minus base at each quantile: a level line says that everything got slower, a rise that only the tail did."""
    if len(arms.pooled) < len(Arm):
        return None
    pooled = _subtract(arms.pooled[Arm.BASE], arms.pooled[Arm.CANDIDATE])
    starts = {arm: [values for other, values in arms.starts if other is arm] for arm in Arm}
    pairs = [_subtract(*pair) for pair in zip(starts[Arm.BASE], starts[Arm.CANDIDATE], strict=False)]
    return make_figure(
        f"{name}-difference",
        f"{title}: candidate minus base",
        "In % of the base at each share of the samples; above zero is slower. A level line: everything got slower; a rise at "
        f"the end: only the tail. The grey band spans the {len(pairs)} pairs of server starts.",
        lambda width: _draw_shift(pooled, pairs, width),
    )


def _subtract(base: Values, candidate: Values) -> tuple[float, ...]:
    """Percent that the candidate takes more at each of SHIFTED; both are sorted here."""
    ordered = np.sort(base), np.sort(candidate)
    found = ((pick_quantile(ordered[0], share), pick_quantile(ordered[1], share)) for share in SHIFTED)
    return tuple(100 * (after / before - 1) if before else 0.0 for before, after in found)


def _draw_shift(pooled: Sequence[float], pairs: Sequence[Sequence[float]], width: float) -> Drawing:
    low, high = find_span([*pooled, *(value for pair in pairs for value in pair), 0.0])
    bottom = ABOVE + HEIGHT
    panel = Panel(
        x=Scale(low=0.0, high=1.0, start=64.0, end=width - 28),
        y=Scale(low=low, high=high, start=bottom, end=ABOVE),
        title="candidate minus base, %",
        x_title="share of the samples",
        show_x=lambda share: format_percent(share, 0),
    )

    def place(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(panel.x.place(share), panel.y.clamp(value)) for share, value in zip(SHIFTED, values, strict=True)]

    ends = [(min(column), max(column)) for column in zip(*pairs, strict=True)]
    band = [*place([end[0] for end in ends]), *reversed(place([end[1] for end in ends]))] if ends else []
    shapes = [*panel.frame(), *([trace(band, "band")] if band else [])]
    shapes.append(line((panel.x.start, panel.y.place(0)), (panel.x.end, panel.y.place(0)), "zero"))
    shapes.append(trace(place(pooled), "curve candidate solid"))
    for share in (0.1, 0.5, 0.9):
        value = pooled[SHIFTED.index(share)]
        at = panel.x.place(share), panel.y.clamp(value)
        shapes.append(
            dot(
                at,
                OUTLINES[Arm.CANDIDATE],
                "candidate full",
                hint=f"{format_percent(share, 0)}: {format_percent(value / 100, is_signed=True)}",
            )
        )
    return Drawing(width=width, height=bottom + BELOW, shapes=tuple(shapes))


def tabulate_quantiles(pooled: Mapping[Arm, Values]) -> Table:
    """Quantiles of all samples of an arm in one pool; a verdict takes each window's own instead."""
    rows = [_row(f"P{100 * share:g}", pooled, share) for share in TABLED if _is_known(pooled, share)]
    return Table(header=("pooled, ms", *(arm.value for arm in pooled), "change"), rows=[*rows, _row("slowest", pooled, 1.0)])


def _is_known(pooled: Mapping[Arm, Values], share: float) -> bool:
    return all(values.size * (1 - share) >= MIN_BEYOND for values in pooled.values())


def _row(title: str, pooled: Mapping[Arm, Values], share: float) -> tuple[str, ...]:
    found = {arm: pick_quantile(values, share) for arm, values in pooled.items()}
    base, candidate = found.get(Arm.BASE), found.get(Arm.CANDIDATE)
    change = wording.percent(candidate / base - 1) if base and candidate else wording.MISSING
    return (title, *(f"{value:,.2f}" for value in found.values()), change)


def pick_quantile(ordered: Values, share: float) -> float:
    """The smallest of the sorted values that at least `share` of them do not exceed."""
    return float(ordered[min(max(int(np.ceil(share * ordered.size)) - 1, 0), ordered.size - 1)])


def _draw(arms: _Arms, width: float) -> Drawing:
    """Side by side where there is room, else one below the other."""
    if width > NARROW:
        fields = ((52.0, width / 2 - 20, ABOVE), (width / 2 + 58, width - 14, ABOVE))
    else:
        left = find_left(map(_show_tail, _list_tail_ticks(arms)), 58.0)
        fields = ((left, width - 12, ABOVE), (left, width - 12, 2 * ABOVE + HEIGHT + BELOW))
    shapes = (*_draw_body(arms, *fields[0]), *_draw_tail(arms, *fields[1]))
    return Drawing(width=width, height=fields[1][2] + HEIGHT + BELOW, shapes=shapes)


def _draw_body(arms: _Arms, left: float, right: float, top: float) -> Iterator[SvgElement]:
    low, high = find_span(pick_quantile(values, share) for values in arms.pooled.values() for share in BODY_SHOWN)
    panel = Panel(
        x=Scale(low=max(low, 0.0), high=high, start=left, end=right),
        y=Scale(low=0.0, high=1.0, start=top + HEIGHT, end=top),
        title="all, share within",
        x_title="ms",
        ticks_y=(0.0, 0.25, 0.5, 0.75, 1.0),
        show_y=lambda share: format_percent(share, 0),
    )
    yield from panel.frame()
    yield from _draw_curves(arms, panel, BODY, lambda share: share)


def _draw_tail(arms: _Arms, left: float, right: float, top: float) -> Iterator[SvgElement]:
    """The share that came later still, from a tenth down to a single one: the end of a curve gets as much room as its start."""
    least = _find_least(arms)
    low = max(min(pick_quantile(values, TAIL_FROM) for values in arms.pooled.values()), 1e-3)
    high = max(low * 1.02, *(float(values[-1]) for values in arms.pooled.values()))
    panel = Panel(
        x=Scale(low=low / (high / low) ** 0.04, high=high * (high / low) ** 0.04, start=left, end=right, is_log=True),
        y=Scale(low=least, high=1 - TAIL_FROM, start=top, end=top + HEIGHT, is_log=True),
        title="the slowest tenth, share within",
        x_title="ms",
        ticks_y=_list_tail_ticks(arms),
        show_y=_show_tail,
    )
    shares = tuple(1 - (1 - TAIL_FROM) ** (1 - step) * least**step for step in np.linspace(0, 1, TAIL_POINTS))
    yield from panel.frame()
    yield from _draw_curves(arms, panel, shares, lambda share: 1 - share)


def _find_least(arms: _Arms) -> float:
    """The share that a single sample is, where it is small enough to be the end of a tail."""
    return min(1 / max(values.size for values in arms.pooled.values()), (1 - TAIL_FROM) / 2)


def _list_tail_ticks(arms: _Arms) -> tuple[float, ...]:
    """Shares beyond, a tick for each power of ten that there are samples for."""
    return tuple(beyond for power in range(1, 9) if (beyond := 10.0**-power) >= _find_least(arms))


def _show_tail(beyond: float) -> str:
    return format_percent(1 - beyond, None)


def _draw_curves(arms: _Arms, panel: Panel, shares: Sequence[float], rise: Callable[[float], float]) -> Iterator[SvgElement]:
    """A curve for each arm over thin ones for its starts, with signs at quantiles that people ask for."""
    if len(arms.starts) > len(arms.pooled):
        for arm, values in arms.starts:
            yield trace(_place(values, panel, shares, rise), f"thread {arm.value}")
    for arm, values in arms.pooled.items():
        yield trace(_place(values, panel, shares, rise), f"curve {arm.value}")
    for arm, values in arms.pooled.items():
        for share in MARKED:
            value, height = pick_quantile(values, share), rise(share)
            if panel.x.holds(value) and panel.y.holds(height) and _is_known(arms.pooled, share):
                hint = f"{arm.value}: {100 * share:g} % within {value:,.2f} ms"
                yield dot((panel.x.place(value), panel.y.place(height)), OUTLINES[arm], f"{arm.value} full", hint=hint)


def _place(values: Values, panel: Panel, shares: Sequence[float], rise: Callable[[float], float]) -> list[tuple[float, float]]:
    """Points of a curve within the field; no further out than there are samples."""
    shown = [share for share in shares if (1 - share) * values.size >= 1 - 1e-6 or share == 1.0]
    found = ((pick_quantile(values, share), rise(share)) for share in shown)
    return [(panel.x.place(value), panel.y.clamp(height)) for value, height in found if panel.x.holds(value)] or [
        (panel.x.start, panel.y.end)
    ]
