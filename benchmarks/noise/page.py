"""Write docs/evidence/noise.md from the result files of `estimators` and `slots`; no figure in it is typed by hand.

Usage: python -m benchmarks.noise.page
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.h200.serving.routed_noise import ANSWERED, FIRST_TOKENS, H100_PAGE
from benchmarks.h200.serving.routed_noise import PAGE as H200_PAGE
from benchmarks.noise.estimators import MAX_RATIO, MIN_ANSWER, MIN_BLOCKS
from benchmarks.noise.slots import RATE, STEP
from benchmarks.verdict.record import read_results
from perfgate.metrics import METRICS
from perfgate.verdict.policy import USUAL_OFFSET_LOG

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "noise.md"
TEMPLATE = "page.md.jinja"
RESULTS = ("estimators", "slots")


def main() -> int:
    """Write the page, or say which result is missing."""
    found = {name: read_results(name) for name in RESULTS}
    if missing := [name for name, result in found.items() if result is None]:
        print(f"results/{missing[0]}.json is missing: run `python -m benchmarks.noise.{missing[0]}`", file=sys.stderr)
        return 2
    PAGE.write_text(write_page(found), encoding="utf-8")
    print(f"written to {PAGE}")
    return 0


def write_page(found: Mapping[str, Any]) -> str:
    """Fill the template. StrictUndefined: a figure that is not there stops the page instead of leaving a gap."""
    # Markdown for a repository, from our own numbers: nothing to escape.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True
    )
    [without] = {row["group"] for row in found["slots"]["groups"] if row["group"].startswith("all but ")}
    far = next(row for row in found["slots"]["sessions"] if row["session"] == without.removeprefix("all but "))
    page = environment.get_template(TEMPLATE).render(
        **found,
        titles={name: metric.title for name, metric in METRICS.items()},
        rules={"max_ratio": MAX_RATIO, "min_blocks": MIN_BLOCKS, "min_answer": MIN_ANSWER},
        usual_offset=USUAL_OFFSET_LOG,
        few=_count_few(found),
        every=_pick(found, "all", RATE),
        every_itl=_pick(found, "all", STEP),
        rest_itl=_pick(found, f"all but {far['session']}", STEP),
        far={"session": far["session"], "blocks": len(far["offsets"][STEP]["differences"]), **far["offsets"][STEP]},
        stored=_pick(found, "mixed-c16", RATE),
        stored_itl=_pick(found, "mixed-c16", STEP),
        least_flips=min(row["flips"] for row in found["slots"]["groups"]),
        beyond=_count_beyond(found, RATE),
        beyond_itl=_count_beyond(found, STEP),
        first_tokens=FIRST_TOKENS,
        answers={"H200": _find_answers(H200_PAGE), "H100": _find_answers(H100_PAGE)},
    )
    # A loop may not end a table head without a blank line: take it out again.
    return re.sub(r"\|[ ]*\n\n\|:--", "|\n|:--", page)


def _count_few(found: Mapping[str, Any]) -> dict[str, int]:
    """The new blocks of equal arms of loads that have too few of them."""
    judged = {row["load"]: row["blocks"] for row in found["estimators"]["judged"]}
    return {load: blocks for load, blocks in judged.items() if blocks < MIN_BLOCKS}


def _count_beyond(found: Mapping[str, Any], metric: str) -> int:
    """The sessions whose mean lies beyond twice its error by windows alone."""
    offsets = [row["offsets"][metric] for row in found["slots"]["sessions"]]
    return sum(abs(one["mean"]) > 2 * one["error"] for one in offsets)


def _find_answers(page: Path) -> str:
    """What the tables of a card's sessions tell of greedy answers."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix(ANSWERED) for line in lines if line.startswith(ANSWERED))


def _pick(found: Mapping[str, Any], group: str, metric: str) -> Mapping[str, Any]:
    return next(row for row in found["slots"]["groups"] if (row["group"], row["metric"]) == (group, metric))


if __name__ == "__main__":
    sys.exit(main())
