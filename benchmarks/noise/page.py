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

from benchmarks.noise.estimators import MAX_RATIO, MIN_ANSWER, MIN_BLOCKS
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
        print(f"results/{missing[0]}.json is missing: run `python -m benchmarks.verdict.{missing[0]}`", file=sys.stderr)
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
    page = environment.get_template(TEMPLATE).render(
        **found,
        titles={name: metric.title for name, metric in METRICS.items()},
        rules={"max_ratio": MAX_RATIO, "min_blocks": MIN_BLOCKS, "min_answer": MIN_ANSWER},
        usual_offset=USUAL_OFFSET_LOG,
        every=_pick(found, "all", "output_tok_per_s"),
        every_itl=_pick(found, "all", "median_itl_ms"),
    )
    # A loop may not end a table head without a blank line: take it out again.
    return re.sub(r"\|[ ]*\n\n\|:--", "|\n|:--", page)


def _pick(found: Mapping[str, Any], group: str, metric: str) -> Mapping[str, Any]:
    return next(row for row in found["slots"]["groups"] if (row["group"], row["metric"]) == (group, metric))


if __name__ == "__main__":
    sys.exit(main())
