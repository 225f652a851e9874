"""Search ranges of 64 commits with a 3 % fault, 200 seeds for each noise: who names the right commit, and at what cost.

Usage: python -m benchmarks.bisect.simulate [--seeds 200]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.bisect.ranges import COMMITS, LOSS, MARGIN, ROOT, TAIL_DF, Noise, draw_range, load_noise
from benchmarks.bisect.searchers import BUDGET, PLAN, SEARCHERS, search_by_posterior
from benchmarks.verdict.record import as_rate, print_table, write_results
from perfgate.results.results import load_results

SESSIONS = ROOT / "benchmarks" / "h200" / "serving" / "routed"
MIXED = "gpt-oss-20b-shape-mxfp4-mixed-c16"
# A session of the same scenario whose time says what a block takes.
TIMED = {MIXED: "mxfp4-mixed-c16-graphs-gpu-15"}
CASES = (
    (MIXED, "output_tok_per_s", None),
    (MIXED, "mean_itl_ms", None),
    (MIXED, "mean_itl_ms", TAIL_DF),
    (MIXED, "median_itl_ms", None),
)


def measure_block_minutes(scenario: str) -> float:
    """GPU-minutes of one block: what the recorded session took, by its blocks."""
    _, session = load_results(SESSIONS / TIMED[scenario])
    if session.timing is None:
        raise SystemExit(f"{TIMED[scenario]}: says nothing of its time")
    return session.timing.took_s / 60 / max(window.block for window in session.windows)


def study(noise: Noise, seeds: int) -> dict[str, Any]:
    """All searchers on the same ranges, and perfgate's on as many without a fault."""
    rows = []
    for name, search in SEARCHERS.items():
        right, endings, blocks, builds = 0, Counter[str](), [], []
        for seed in range(seeds):
            drawn = draw_range(noise, seed)
            found = search(noise, drawn)
            right += found.named == drawn.culprit
            endings["wrong" if found.named not in {None, drawn.culprit} else found.ending] += 1
            blocks.append(found.blocks)
            builds.append(found.builds)
        rows.append(
            {
                "search": name,
                "right": as_rate(right, seeds),
                "endings": dict(endings),
                "blocks": round(fmean(blocks), 2),
                "most_blocks": max(blocks),
                "minutes": round(fmean(blocks) * noise.minutes, 1),
                "builds": round(fmean(builds), 2),
            }
        )
    clean = [search_by_posterior(noise, draw_range(noise, seed, has_fault=False)) for seed in range(seeds)]
    return {
        "noise": asdict(noise),
        "searches": rows,
        "without_fault": {
            "named": as_rate(sum(one.named is not None for one in clean), seeds),
            "endings": dict(Counter(one.ending for one in clean)),
            "blocks": round(fmean(one.blocks for one in clean), 2),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    given = parser.parse_args()
    began = time.perf_counter()
    minutes = {scenario: measure_block_minutes(scenario) for scenario in TIMED}
    rows = []
    for scenario, metric, tail_df in CASES:
        rows.append(study(load_noise(scenario, metric, minutes[scenario], tail_df), given.seeds))
        print_table(
            ["search", "right", "blocks", "GPU-minutes", "builds"],
            [
                [row["search"], f"{row['right']['rate']:.1%}", str(row["blocks"]), str(row["minutes"]), str(row["builds"])]
                for row in rows[-1]["searches"]
            ],
        )
    facts = {"commits": COMMITS, "loss": LOSS, "margin": MARGIN, "looks": PLAN.looks, "budget_blocks": BUDGET, "rows": rows}
    print(f"written to {write_results('results', began, facts, Path(__file__).parent)}")


if __name__ == "__main__":
    main()
