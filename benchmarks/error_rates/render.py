"""Write docs/error-rates.md and its picture from results.json; no figure in it is typed by hand.

Usage: python -m benchmarks.error_rates.render [results.json]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.error_rates.goals import MAX_FALSE, MIN_REPLAYS, STALL_LOSS
from perfgate.metrics import METRICS
from perfgate.verdict.policy import CALIBRATED_BLOCKS, USUAL_RATIO

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "error-rates.md"
PICTURE = DOCS / "error-rates.svg"
TEMPLATE = "page.md.jinja"

Row = Mapping[str, Any]


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    if not path.exists():
        print(f"{path} is missing: run `python -m benchmarks.error_rates.replay`", file=sys.stderr)
        return 2
    found = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(write_page(found), encoding="utf-8")
    draw(list_cases(found, found["designs"][0]))
    print(f"written to {PAGE} and {PICTURE}")
    return 0


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
    )
    # Blocks of the template leave a line too few around headings, or too many elsewhere.
    page = re.sub(r"\n(#+ .*)\n", r"\n\n\1\n\n", page)
    return re.sub(r"\n{3,}", "\n\n", page)


def list_cases(found: Mapping[str, Any], design: Row) -> list[Row]:
    """The cases of one design."""
    key = ("scenario", "workload")
    return [case for case in found["cases"] if all(case[name] == design[name] for name in key)]


def draw(cases: Sequence[Row]) -> None:
    """What each metric showed of what a slow-down spent, and how often the rule found it in that metric alone."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    sized = [case for case in cases if case["kind"] == "aa" or (case["direct"] and case["effect"])]
    sized.sort(key=find_size)
    for offset, name in enumerate(name for name in METRICS if any(name in case["differences"] for case in sized)):
        shown = [case for case in sized if name in case["differences"]]
        # Points of one effect side by side, so that their bars can be told apart.
        places = [100 * find_size(case) + 0.05 * (offset - 2) for case in shown]
        means = [100 * case["differences"][name]["mean"] for case in shown]
        reaches = [100 * (case["differences"][name]["reach"] or 0.0) for case in shown]
        left.errorbar(places, means, yerr=reaches, fmt="o", markersize=4, capsize=2, label=METRICS[name].title)
        judged = [case for case in shown if case["rows"] and name in case["rows"][-1]["alone"]]
        powers = [100 * case["rows"][-1]["alone"][name]["regression"]["rate"] for case in judged]
        # No line between points: each is a session of its own, and one replay is no share.
        sizes = [100 * find_size(case) for case in judged]
        right.plot(sizes, powers, marker="o", linestyle="none", alpha=0.7, label=METRICS[name].title)
    top = 100 * max(map(find_size, sized), default=0.0)
    left.plot([0, top], [0, top], color="black", linewidth=0.8, linestyle=":", label="as spent")
    left.set(xlabel="spent of a decode step (%)", ylabel="what the metric lost (%)", title="Response, 90 % interval")
    # Linear up to what was injected; a tail that scatters far beyond it is still in the picture.
    left.set_yscale("symlog", linthresh=max(2.0, 1.3 * top), linscale=3.0)
    left.set_yticks((-100, -10, -5, 0, 5, 10, 100))
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.set(
        xlabel="spent of a decode step (%)", ylabel="REGRESSION (%)", title="Found in that metric alone, a point a session"
    )
    right.set_ylim(-2, 102)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    with rc_context({"svg.hashsalt": "perfgate"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def find_size(case: Row) -> float:
    """What the slow-down spent, zero for equal arms."""
    return float(case["effect"] or 0.0)


if __name__ == "__main__":
    sys.exit(main())
