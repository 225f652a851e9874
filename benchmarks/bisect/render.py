"""Write docs/how-to/bisect.md from results.json.xz; no figure in it is typed by hand.

Usage: python -m benchmarks.bisect.render
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.bisect.ranges import ROOT, TAIL_DF
from benchmarks.bisect.simulate import MIXED
from benchmarks.verdict.record import read_results
from perfgate.metrics import METRICS

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "how-to" / "bisect.md"
TITLES = {MIXED: "mixed lengths, 16 at a time"}
TARGET = 0.9


def main() -> int:
    found = read_results("results", HERE)
    if found is None:
        print(f"{HERE}/results.json.xz is missing: run `python -m benchmarks.bisect.simulate`", file=sys.stderr)
        return 2
    PAGE.write_text(write_page(found), encoding="utf-8")
    print(f"written to {PAGE}")
    return 0


def write_page(found: dict[str, Any]) -> str:
    """Fill the template. StrictUndefined: a figure that is not there stops the page instead of leaving a gap."""
    # Markdown for a repository, from our own numbers: nothing to escape.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, keep_trailing_newline=True
    )
    rows = found["rows"]
    missed = [row["noise"] for row in rows if row["searches"][0]["right"]["rate"] < TARGET]
    unsure = [row for row in rows if row["searches"][0]["right"]["lower95"] < TARGET]
    clean = [row["without_fault"] for row in rows]
    return environment.get_template("page.md.jinja").render(
        **found,
        titles=TITLES,
        metrics=METRICS,
        tail_df=TAIL_DF,
        seeds=rows[0]["searches"][0]["right"]["tries"],
        target=TARGET,
        met=not missed,
        met_count=len(rows) - len(missed),
        missed=", ".join(map(describe_noise, missed)),
        unsure=[(describe_noise(row["noise"]), row["searches"][0]["right"]["lower95"]) for row in unsure],
        out_of_budget=count_endings(rows, "OUT_OF_BUDGET"),
        passed=count_endings(rows, "NO_DIFFERENCE"),
        faulty=sum(row["searches"][0]["right"]["tries"] for row in rows),
        named=sum(one["named"]["count"] for one in clean),
        clean=sum(one["named"]["tries"] for one in clean),
        clean_blocks=fmean(one["blocks"] for one in clean),
    )


def describe_noise(noise: dict[str, Any]) -> str:
    """A noise as the sentences below the table call it."""
    tails = ", heavy tails" if noise["tail_df"] else ""
    return f"{TITLES[noise['scenario']]} with {METRICS[noise['metric']].title}{tails}"


def count_endings(rows: list[dict[str, Any]], ending: str) -> int:
    """How many of perfgate's searches for a fault ended like this."""
    return sum(row["searches"][0]["endings"].get(ending, 0) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
