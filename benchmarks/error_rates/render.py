"""Write docs/evidence/error-rates.md and its picture from results.json.xz; no figure in it is typed by hand.

Usage: python -m benchmarks.error_rates.render [results.json.xz]
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import copysign, log10
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.error_rates.case_study import TOLD_BLOCKS
from benchmarks.error_rates.goals import MAX_FALSE, MIN_REPLAYS, STALL_LOSS
from benchmarks.verdict.record import read_packed
from perfgate.core import Outcome
from perfgate.metrics import METRICS
from perfgate.report.chart.curves import choose_sign
from perfgate.report.chart.picture import ABOVE, BELOW, place_fields, save_picture
from perfgate.report.chart.svg import Drawing, LegendEntry, Panel, Scale, SvgElement, dot, line, trace
from perfgate.stats.binomial import bound_rate
from perfgate.verdict.policy import CALIBRATED_BLOCKS, USUAL_RATIO

HERE = Path(__file__).parent
RESULTS = HERE / "results.json.xz"
DOCS = HERE.parents[1] / "docs" / "evidence"
PAGE = DOCS / "error-rates.md"
PICTURE = DOCS / "error-rates.svg"
TEMPLATE = "page.md.jinja"

Row = Mapping[str, Any]
Field = tuple[float, float, float]
WIDTH, HEIGHT = 1000.0, 330.0
# Percents beyond which a bar ends at the edge, and those that are named.
REACH, TICKS = 200.0, (-100.0, -10.0, -5.0, 0.0, 5.0, 10.0, 100.0)


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    if not path.exists():
        print(f"{path} is missing: run `python -m benchmarks.error_rates.replay`", file=sys.stderr)
        return 2
    found = read_results(path)
    PAGE.write_text(write_page(found), encoding="utf-8")
    draw(list_cases(found, found["designs"][0]))
    print(f"written to {PAGE} and {PICTURE}")
    return 0


def read_results(path: Path = RESULTS) -> dict[str, Any]:
    """What `replay` found, as it packed it."""
    return read_packed(path)


def write_page(found: Mapping[str, Any]) -> str:
    """Fill the template. StrictUndefined: a figure that is not there stops the page instead of leaving a gap."""
    # Markdown for a repository, from our own numbers: nothing to escape.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    page = environment.get_template(TEMPLATE).render(
        **found,
        cases_of=lambda design: list_cases(found, design),
        titles={name: metric.title for name, metric in METRICS.items()},
        units={name: metric.unit for name, metric in METRICS.items()},
        order=list(METRICS),
        max_false=MAX_FALSE,
        min_replays=MIN_REPLAYS,
        stall_loss=STALL_LOSS,
        usual_ratio=USUAL_RATIO,
        calibrated_blocks=CALIBRATED_BLOCKS,
        told_blocks=TOLD_BLOCKS,
        apart=count_apart(found["designs"]),
        by_hardware=count_by_hardware(found["designs"]),
        carded=list_carded(found["designs"]),
        exchanged=count_exchanged(found["cases"]),
        losses=count_losses(found["cases"]),
        equal=count_equal(found["cases"]),
    )
    # Blocks of the template leave a line too few around headings, or too many elsewhere.
    page = re.sub(r"\n(#+ .*)\n", r"\n\n\1\n\n", page)
    return re.sub(r"\n{3,}", "\n\n", page)


def count_apart(designs: Sequence[Row]) -> dict[str, float]:
    """Verdicts on equal arms that share no block, over these designs: false alarms, verdicts, the 95 % bound of the rate."""
    goals = [design["goals"]["false_alarms"]["disjoint"] for design in designs if design["goals"] is not None]
    counted = [one for one in goals if one is not None]
    alarms, verdicts = (sum(one[name] for one in counted) for name in ("count", "tries"))
    return {"alarms": alarms, "verdicts": verdicts, "upper95": bound_rate(alarms, verdicts) if verdicts else 1.0}


def count_by_hardware(designs: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The same of each kind of machine."""
    kinds = dict.fromkeys(design["hardware"] for design in designs)
    return {kind: count_apart([design for design in designs if design["hardware"] == kind]) for kind in kinds}


def list_carded(designs: Sequence[Row]) -> list[Row]:
    """The designs that goals are held against: those of the first one's scenario, one for each kind of machine."""
    known: dict[str, Row] = {}
    for one in designs:
        if one["goals"] is not None and one["scenario"] == designs[0]["scenario"]:
            known.setdefault(one["hardware"], one)
    return list(known.values())


def count_exchanged(cases: Sequence[Row]) -> dict[str, Any]:
    """What whole sessions of equal arms end in with their labels exchanged: how many there are, and those that alarm."""
    lives = [one for case in cases if case["kind"] == "aa" for one in case["live"]]
    alarms = [one for one in lives if one["exchanged"]["outcome"] == Outcome.REGRESSION.value]
    return {"sessions": len(lives), "alarms": [{"folder": one["folder"], **one["exchanged"]} for one in alarms]}


def count_losses(cases: Sequence[Row]) -> dict[str, Any]:
    """The whole sessions that were slowed on purpose: those that were found, and the others with what they ended in.

    `smallest` is what the smallest of those found spent of a decode step, of slow-downs of every step.
    """
    lives = [{**one, **_tell(case)} for case in cases if case["kind"] == "injected" for one in case["live"]]
    found = [one for one in lives if one["outcome"] == Outcome.REGRESSION.value]
    sizes = [one["effect"] for one in found if one["direct"] and one["effect"]]
    missed = [one for one in lives if one not in found]
    return {"sessions": len(lives), "found": found, "missed": missed, "smallest": min(sizes, default=0.0)}


def _tell(case: Row) -> dict[str, Any]:
    return {name: case[name] for name in ("label", "hardware", "effect", "direct")}


def count_equal(cases: Sequence[Row]) -> dict[str, Any]:
    """How the whole sessions of equal arms ended, as they stood."""
    outcomes = Counter(one["outcome"] for case in cases if case["kind"] == "aa" for one in case["live"])
    return {"sessions": outcomes.total(), "outcomes": dict(sorted(outcomes.items()))}


def list_cases(found: Mapping[str, Any], design: Row) -> list[Row]:
    """The cases of one design."""
    key = ("scenario", "workload", "hardware")
    return [case for case in found["cases"] if all(case[name] == design[name] for name in key)]


def draw(cases: Sequence[Row]) -> None:
    """What each metric showed of what a slow-down spent, and how often the rule found it in that metric alone."""
    sized = [case for case in cases if case["kind"] == "aa" or (case["direct"] and case["effect"])]
    sized.sort(key=find_size)
    names = [name for name in METRICS if any(name in case["differences"] for case in sized)]
    top = 100 * max(map(find_size, sized), default=0.0)
    fields = tuple(place_fields(2, 2, WIDTH, HEIGHT))
    shapes = (*draw_responses(sized, names, top, fields[0]), *draw_found(sized, names, top, fields[1]))
    keys = [
        LegendEntry(sign=(dot((11, 8), outline, f"{style} full"),), text=METRICS[name].title)
        for name, (outline, style) in ((name, choose_sign(name, number)) for number, name in enumerate(names))
    ]
    spent = LegendEntry(sign=(line((1, 8), (21, 8), "roofline"),), text="as spent")
    drawing = Drawing(width=WIDTH, height=ABOVE + HEIGHT + BELOW, shapes=shapes)
    save_picture(PICTURE, "Recorded sessions: what metrics lost, and in which the rule found it", drawing, [*keys, spent])


def draw_responses(sized: Sequence[Row], names: Sequence[str], top: float, field: Field) -> Iterator[SvgElement]:
    """The loss of each metric with its 90 % interval over what was spent.

    The axis is linear up to what was injected, so that a tail that scatters far beyond it is still in the picture.
    """
    linear = max(2.0, 1.3 * top)
    panel = Panel(
        x=Scale(low=-0.5, high=top + 0.7, start=field[0], end=field[1]),
        y=Scale(low=-bend(REACH, linear), high=bend(REACH, linear), start=field[2] + HEIGHT, end=field[2]),
        title="What the metric lost, %, with its 90 % interval",
        x_title="spent of a decode step, %",
        ticks_y=tuple(bend(tick, linear) for tick in TICKS),
        show_y=lambda bent: next(f"{tick:g}" for tick in TICKS if bend(tick, linear) == bent),
    )
    yield from panel.frame()
    steps = [top * step / 40 for step in range(41)]
    yield trace([(panel.x.place(spent), panel.y.place(bend(spent, linear))) for spent in steps], "roofline")
    for number, name in enumerate(names):
        outline, style = choose_sign(name, number)
        for case in (case for case in sized if name in case["differences"]):
            found = case["differences"][name]
            mean, reach = 100 * found["mean"], 100 * (found["reach"] or 0.0)
            # Points of one effect side by side, so that their bars can be told apart.
            x = panel.x.place(100 * find_size(case)) + 5 * (number - len(names) // 2)
            low, middle, high = (panel.y.clamp(bend(value, linear)) for value in (mean - reach, mean, mean + reach))
            yield line((x, low), (x, high), f"whisker {style}")
            hint = f"{METRICS[name].title}, {100 * find_size(case):.2f} % spent: {mean:+.2f} % (+/- {reach:.2f})"
            yield dot((x, middle), outline, f"{style} full", radius=4.0, hint=hint)


def draw_found(sized: Sequence[Row], names: Sequence[str], top: float, field: Field) -> Iterator[SvgElement]:
    """The share of replays that found a loss in each metric alone. No line: each point is a session of its own."""
    panel = Panel(
        x=Scale(low=-0.5, high=top + 0.7, start=field[0], end=field[1]),
        y=Scale(low=-4.0, high=104.0, start=field[2] + HEIGHT, end=field[2]),
        title="REGRESSION found in that metric alone, %, a point a session",
        x_title="spent of a decode step, %",
    )
    yield from panel.frame()
    for number, name in enumerate(names):
        outline, style = choose_sign(name, number)
        for case in (case for case in sized if case["rows"] and name in case["rows"][-1]["alone"]):
            power = 100 * case["rows"][-1]["alone"][name]["regression"]["rate"]
            x = panel.x.place(100 * find_size(case)) + 5 * (number - len(names) // 2)
            hint = f"{METRICS[name].title}, {100 * find_size(case):.2f} % spent: found {power:.0f} %"
            yield dot((x, panel.y.place(power)), outline, f"{style} full", radius=4.0, hint=hint)


def bend(value: float, linear: float) -> float:
    """A scale that is linear to 3 at `linear`, and logarithmic beyond it, one for each power of ten."""
    if abs(value) <= linear:
        return 3 * value / linear
    return copysign(3 + log10(abs(value) / linear), value)


def find_size(case: Row) -> float:
    """What the slow-down spent, zero for equal arms."""
    return float(case["effect"] or 0.0)


if __name__ == "__main__":
    sys.exit(main())
