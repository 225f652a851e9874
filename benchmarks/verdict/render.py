"""Write docs/evidence/error-rates-simulated.md and its picture from the result files; no figure in it is typed by hand.

Usage: python -m benchmarks.verdict.render
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.verdict.gate import LOOKS
from benchmarks.verdict.power_curves import BLOCKS, EFFECTS, KINDS, OURS, WINDOWS
from benchmarks.verdict.record import read_results
from benchmarks.verdict.simulator import DEFAULT
from perfgate.metrics import METRICS
from perfgate.report.chart.curves import Polyline, choose_sign, draw_polylines
from perfgate.report.chart.picture import ABOVE, BELOW, place_fields, save_picture
from perfgate.report.chart.svg import Drawing, Panel, Scale

DOCS = Path(__file__).parents[2] / "docs" / "evidence"
PAGE = DOCS / "error-rates-simulated.md"
PICTURE = DOCS / "error-rates-simulated.svg"
TEMPLATE = "page.md.jinja"
RESULTS = ("cases", "power_curves", "designs", "public_data", "prediction", "spot_check", "offset", "guard")
MATCHED = "1% false alarms"
WIDTH, HEIGHT = 1000.0, 260.0
# Further rules share the colours of the first ones, and are dotted.
COLOURS = 7

Row = Mapping[str, Any]


def main() -> int:
    found = {name: result for name in RESULTS if (result := read_results(name)) is not None}
    missing = [name for name in RESULTS if name not in found]
    if missing:
        print(f"results/{missing[0]}.json is missing: run `python -m benchmarks.verdict.{missing[0]}`", file=sys.stderr)
        return 2
    rows = found["power_curves"]["rows"]
    PAGE.write_text(write_page(found, rows), encoding="utf-8")
    draw(rows)
    print(f"written to {PAGE} and {PICTURE}")
    return 0


def write_page(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Fill the template. StrictUndefined: a figure that is not there stops the page instead of leaving a gap."""
    # Markdown for a repository, from our own numbers: nothing to escape.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True
    )
    rate = DEFAULT.stall_rate
    page = environment.get_template(TEMPLATE).render(
        **found,
        noise=DEFAULT,
        titles={name: metric.title for name, metric in METRICS.items()},
        floors={name: metric.margin_ratio / 2 for name, metric in METRICS.items()},
        effects=EFFECTS,
        kinds=list(KINDS),
        own_power={kind: pick(rows, OURS, "own")["power"][kind]["0.03"] for kind in KINDS if not kind.startswith("P99")},
        best={kind: find_best(rows, kind) for kind in KINDS},
        spoiled=3 * rate**2 * (1 - rate) + rate**3,
        promises=compare_promises(found["prediction"]),
        looks=LOOKS,
        target_false=0.01,
        target_pass=0.05,
        target_power=0.95,
    )
    # A macro may not end a table head without a blank line: take it out again.
    return re.sub(r"\|\n\n\|---", "|\n|---", page)


def pick(rows: Sequence[Row], rule: str, limit: str) -> Row:
    """The row of one rule on the same windows."""
    return next(row for row in rows if row["rule"] == rule and row["limit"] == limit)


def find_best(rows: Sequence[Row], kind: str) -> dict[str, Any]:
    """Who else finds most of +3 % at equal false alarms, and what perfgate finds."""
    others = [row for row in rows if row["limit"] == MATCHED and row["rule"] != OURS]
    best = max(others, key=lambda row: row["power"][kind]["0.03"])
    ours = pick(rows, OURS, MATCHED)["power"][kind]["0.03"]
    return {"rule": best["rule"], "power": best["power"][kind]["0.03"], "ours": ours}


def compare_promises(found: Mapping[str, Any]) -> dict[str, Any]:
    """`least` is the least found where nothing stalls; `stalled` is throughput where windows do."""
    least = min(row["found"]["rate"] for row in found["rows"] if row["noise"] == "no stalls")
    [stalled] = [row for row in found["rows"] if (row["noise"], row["metric"]) == ("with stalls", "output_tok_per_s")]
    return {"rows": found["rows"], "least": least, "stalled": stalled}


def draw(rows: Sequence[Row]) -> None:
    """Power against the size of the slow-down at 1 % false alarms, one field for each kind."""
    # A threshold that is moved anyway is one rule, not two.
    chosen = [row for row in rows if row["limit"] == MATCHED and row["rule"] not in {"fixed 10 %", "TensorRT-LLM 10 %"}]
    # Ours comes last, on top of the others.
    chosen.sort(key=lambda row: row["rule"] == OURS)
    drawn = []
    for kind, (left, right, top) in zip(KINDS, place_fields(len(KINDS), 2, WIDTH, HEIGHT), strict=True):
        panel = Panel(
            x=Scale(low=0.0, high=100 * max(EFFECTS), start=left, end=right),
            y=Scale(low=0.0, high=100.0, start=top + HEIGHT, end=top),
            title=f"{kind} slows down: found, %",
            x_title="true slow-down, %",
        )
        drawn += [*panel.frame(), *draw_polylines(panel, [trace_rule(row, kind, index) for index, row in enumerate(chosen)])]
    keys = [trace_rule(row, next(iter(KINDS)), index).key for index, row in enumerate(chosen)]
    title = f"Power at 1 % whole-verdict false alarms, {BLOCKS} blocks of {WINDOWS} windows an arm (simulated)"
    height = 2 * (ABOVE + HEIGHT + BELOW)
    save_picture(PICTURE, title, Drawing(width=WIDTH, height=height, shapes=tuple(drawn)), reversed(keys))


def trace_rule(row: Row, kind: str, number: int) -> Polyline:
    """How often one rule finds each slow-down of one kind, in percent."""
    name = row["rule"].removesuffix(" 5 %").removesuffix(" 10 %")
    outline, style = choose_sign(name, number)
    if number >= COLOURS:
        style += " dotted"
    if row["rule"] == OURS:
        outline, style = "circle", "focus"
    found = [(100 * effect, 100 * row["power"][kind][f"{effect:g}"]) for effect in EFFECTS]
    points = tuple((effect, power, f"{name}, {kind} {effect:+g} %: found {power:.1f} %") for effect, power in found)
    return Polyline(name=name, outline=outline, style=style, points=points)


if __name__ == "__main__":
    sys.exit(main())
