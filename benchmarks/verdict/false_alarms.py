"""How often perfgate calls a regression when nothing changed, under the assumed noise and under noise that breaks assumptions.

Usage: python -m benchmarks.verdict.false_alarms [--verdicts 10000] [--deep 5000] [--sweep 2000] [--seed 1]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.verdict.gate import LOOKS, PLAN, Design, decide_all, draw_batch
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import DEFAULT
from perfgate.core import Outcome

CHUNK = 2000
RESTLESS, STALE = "restless sessions (x/ 1.5)", "stored at half of today's noise"
# What the choice of the rule's constants was made for is counted with more care than the rest of the sweep.
DEEP = (RESTLESS, STALE)


def list_settings() -> dict[str, Design]:
    """The noise models of the sweep; each changes one thing against the first."""
    return {
        "as assumed": Design(),
        "start effects x 0": Design(noise=DEFAULT.scaled(start=0.0)),
        "start effects x 2": Design(noise=DEFAULT.scaled(start=2.0)),
        "start effects x 4": Design(noise=DEFAULT.scaled(start=4.0)),
        "session effects x 4": Design(noise=DEFAULT.scaled(session=4.0)),
        "no stalls": Design(noise=replace(DEFAULT, stall_rate=0.0)),
        "stalls in 30 % of windows": Design(noise=replace(DEFAULT, stall_rate=0.3)),
        "stalls, no re-runs": Design(reruns=False),
        "metrics uncorrelated": Design(noise=replace(DEFAULT, correlation=0.0)),
        "metrics 95 % correlated": Design(noise=replace(DEFAULT, correlation=0.95)),
        RESTLESS: Design(noise=replace(DEFAULT, unrest=0.405)),
        STALE: Design(stored_noise=DEFAULT.scaled(start=0.5, window=0.5)),
        "stored at a third of today's noise": Design(stored_noise=DEFAULT.scaled(start=1 / 3, window=1 / 3)),
        "only 4 stored blocks": Design(stored=4),
        "60 stored blocks": Design(stored=60),
        "1 window a start": Design(windows=1, reruns=False),
        "5 windows a start": Design(windows=5),
    }


def count_outcomes(rng: np.random.Generator, design: Design, verdicts: int) -> tuple[Counter[str], Counter[int]]:
    """Judge A/A verdicts; return how often each outcome and each number of blocks came out."""
    outcomes: Counter[str] = Counter()
    looks: Counter[int] = Counter()
    for count in _chunks(verdicts):
        for decision in decide_all(draw_batch(rng, design, count)):
            outcomes[decision.outcome.value] += 1
            looks[decision.look] += 1
    return outcomes, looks


def _chunks(total: int) -> Iterator[int]:
    for first in range(0, total, CHUNK):
        yield min(CHUNK, total - first)


def describe(name: str, outcomes: Counter[str], looks: Counter[int]) -> dict[str, Any]:
    """One row of the result file."""
    tries = outcomes.total()
    passed = outcomes[Outcome.PASS.value] + outcomes[Outcome.IMPROVED.value]
    return {
        "setting": name,
        "false_regression": as_rate(outcomes[Outcome.REGRESSION.value], tries),
        "false_improved": as_rate(outcomes[Outcome.IMPROVED.value], tries),
        "pass": as_rate(passed, tries),
        "inconclusive": as_rate(outcomes[Outcome.INCONCLUSIVE.value], tries),
        "mean_blocks": round(sum(look * count for look, count in looks.items()) / tries, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=10_000, help="A/A verdicts under the assumed noise")
    parser.add_argument("--deep", type=int, default=5_000, help="under the noise that the rule was chosen for")
    parser.add_argument("--sweep", type=int, default=2_000, help="A/A verdicts under each other noise")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = []
    for index, (name, design) in enumerate(list_settings().items()):
        rng = np.random.default_rng([given.seed, index])
        verdicts = given.deep if name in DEEP else given.sweep if index else given.verdicts
        rows.append(describe(name, *count_outcomes(rng, design, verdicts)))
    facts = {"alpha": PLAN.alpha, "looks": list(LOOKS), "metrics": list(DEFAULT.metrics), "seed": given.seed, "rows": rows}
    path = write_results("false_alarms", began, facts)
    print_table(
        ["A/A verdicts, noise", "verdicts", "false REGRESSION", "95 % upper bound", "PASS", "INCONCLUSIVE", "blocks"],
        [
            [
                row["setting"],
                str(row["pass"]["tries"]),
                f"{row['false_regression']['rate']:.2%}",
                f"{row['false_regression']['upper95']:.2%}",
                f"{row['pass']['rate']:.1%}",
                f"{row['inconclusive']['rate']:.1%}",
                f"{row['mean_blocks']:.2f}",
            ]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
