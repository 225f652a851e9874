"""What an offset that favours one arm for a whole session takes: a stricter alpha, or more stored sessions of equal arms.

Usage: python -m benchmarks.verdict.offset [--verdicts 20000] [--trials 2000] [--seed 11]
The noise is the page's case of an offset of 1.0 %; the rule is the one that ships but for what a row says.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdict.cases import CHUNK, GATES, describe, list_cases
from benchmarks.verdict.gate import ALPHA, PLAN, Design, decide_all, draw_batch
from benchmarks.verdict.record import print_table, write_results
from benchmarks.verdict.simulator import Floats, slow_down
from perfgate.stats.looks import LookPlan

CASE = "offset of 1.0 %"
ALPHAS = (ALPHA, 0.008, 0.006, 0.004)
STORED = (40, 80)
"""More A/A blocks than the case's, each four of a session of its own."""

EFFECT = 0.03


def list_tries() -> Iterator[tuple[Design, tuple[LookPlan, ...]]]:
    """What is measured, and the plans that judge it: every alpha by the case's stored blocks, the shipped one by more."""
    design = list_cases()[CASE].design
    yield design, tuple(replace(PLAN, alpha=alpha) for alpha in ALPHAS)
    for stored in STORED:
        yield replace(design, stored=stored), (PLAN,)


def count(
    rng: np.random.Generator, design: Design, plans: tuple[LookPlan, ...], verdicts: int, effect: Floats | None = None
) -> list[dict[str, Any]]:
    """Judge the same windows by each plan."""
    outcomes = [Counter[Any]() for _ in plans]
    blocks = [0] * len(plans)
    for first in range(0, verdicts, CHUNK):
        batch = draw_batch(rng, design, min(CHUNK, verdicts - first), effect)
        for place, plan in enumerate(plans):
            for decision in decide_all(batch, plan):
                outcomes[place][decision.outcome] += 1
                blocks[place] += decision.look
    return [describe(counted, looked, verdicts) for counted, looked in zip(outcomes, blocks, strict=True)]


def study(
    design: Design, plans: tuple[LookPlan, ...], seed: tuple[int, int], verdicts: int, trials: int
) -> list[dict[str, Any]]:
    """A row for each plan: equal arms, then a loss in all metrics."""
    equal = count(np.random.default_rng([*seed, 0]), design, plans, verdicts)
    slower = count(np.random.default_rng([*seed, 1]), design, plans, trials, slow_down(GATES, EFFECT, None))
    return [
        {
            "alpha": plan.alpha,
            "stored": design.stored,
            "sessions": design.stored // design.session_blocks,
            "equal": one,
            "slower": lost,
        }
        for plan, one, lost in zip(plans, equal, slower, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=20000, help="of equal arms, for each row")
    parser.add_argument("--trials", type=int, default=2000, help="with a loss, for each row")
    parser.add_argument("--seed", type=int, default=11)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = []
    for index, (design, plans) in enumerate(list_tries()):
        rows += study(design, plans, (given.seed, index), given.verdicts, given.trials)
    path = write_results("offset", began, {"case": CASE, "effect": EFFECT, "seed": given.seed, "rows": rows})
    print_table(
        ["alpha", "stored blocks", "false REGRESSION", "at most", "INCONCLUSIVE", "found"],
        [
            [
                f"{row['alpha']:.1%}",
                str(row["stored"]),
                f"{row['equal']['regression']['rate']:.2%}",
                f"{row['equal']['regression']['upper95']:.2%}",
                f"{row['equal']['inconclusive']['rate']:.0%}",
                f"{row['slower']['regression']['rate']:.0%}",
            ]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
