"""What may stand for stored noise where there is none: what windows tell of blocks, used in four ways on the same windows.

Usage: python -m benchmarks.verdict.guard [--verdicts 4000] [--trials 1000] [--seed 13]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.verdict.cases import CHUNK, GATES, describe, list_cases, make_noise
from benchmarks.verdict.gate import PLAN, Design, draw_batch
from benchmarks.verdict.record import print_table, write_results
from benchmarks.verdict.simulator import Floats, slow_down
from perfgate.core import Outcome
from perfgate.stats.looks import Series, decide
from perfgate.stats.moderated import Estimate, estimate

EFFECT = 0.05
PRIOR_RATIO, PRIOR_DF = 1.8, 4
"""By what mean D^2 of two blocks over the variance of windows alone is in the recorded sessions of equal arms, a fit by eye:
quantiles of PRIOR_RATIO times F with 2 and PRIOR_DF degrees of freedom lie near those of the sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floored(Series):
    """Blocks never agree better than their windows alone would make them: as a guard of very many blocks."""

    def estimate(self, blocks: int) -> Estimate:
        """Estimate with the windows' variance where that is larger."""
        found, usual = self.differences[:blocks], self.usual[blocks - 1]
        seen = float(np.var(found, ddof=1))
        scale = (max(seen, usual) / seen) ** 0.5 if seen else 0.0
        middle = sum(found) / len(found)
        spread = [middle + scale * (one - middle) for one in found] if seen else found
        return estimate(spread, self.prior, usual=usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaning(Series):
    """Blocks lean on windows as on stored noise."""

    def estimate(self, blocks: int) -> Estimate:
        """Estimate with PRIOR_RATIO times the windows' variance as if it were stored."""
        prior = replace(self.prior, variance=PRIOR_RATIO * self.usual[blocks - 1], df=PRIOR_DF)
        return estimate(self.differences[:blocks], prior)


WAYS: Mapping[str, Callable[[Series], Series]] = {
    "nothing": lambda one: replace(one, usual=()),
    "a guard of two blocks": lambda one: one,
    "a floor": lambda one: _as(Floored, one),
    "a prior": lambda one: _as(Leaning, one),
}
"""Blocks by themselves, as rule 2026-11.11 took them; the rule; and two that it might have been."""


def list_designs() -> Mapping[str, Design]:
    """The page's cases without a baseline, and starts that lie farther apart still."""
    found = {name: case.design for name, case in list_cases().items() if name.endswith("no baseline")}
    noises = {ratio: make_noise((ratio, 4.0 * ratio, 0.56 * ratio)) for ratio in (4, 10)}
    (first, *_) = found.values()
    return found | {
        f"starts {ratio} times as far apart as windows": replace(first, noise=noise) for ratio, noise in noises.items()
    }


def count(rng: np.random.Generator, design: Design, verdicts: int, effect: Floats | None = None) -> dict[str, dict[str, Any]]:
    """Judge the same windows in each way; `first` is how many failed at the first look."""
    outcomes = {way: Counter[Outcome]() for way in WAYS}
    blocks, first = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
    for begin in range(0, verdicts, CHUNK):
        for series in draw_batch(rng, design, min(CHUNK, verdicts - begin), effect).trials():
            for way, take in WAYS.items():
                decision = decide([take(one) for one in series], PLAN)
                outcomes[way][decision.outcome] += 1
                blocks[way] += decision.look
                first[way] += decision.outcome is Outcome.REGRESSION and decision.look == PLAN.looks[0]
    return {way: describe(outcomes[way], blocks[way], verdicts) | {"first": first[way] / verdicts} for way in WAYS}


def _as(kind: type[Series], one: Series) -> Series:
    return kind(differences=one.differences, margin_log=one.margin_log, prior=one.prior, usual=one.usual, gating=one.gating)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=4000, help="of equal arms, for each noise")
    parser.add_argument("--trials", type=int, default=1000, help="with a loss, for each noise")
    parser.add_argument("--seed", type=int, default=13)
    given = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for index, (name, design) in enumerate(list_designs().items()):
        equal = count(np.random.default_rng([given.seed, index, 0]), design, given.verdicts)
        effect = slow_down(GATES, EFFECT, None)
        slower = count(np.random.default_rng([given.seed, index, 1]), design, given.trials, effect)
        rows += [{"noise": name, "way": way, "equal": equal[way], "slower": slower[way]} for way in WAYS]
        print(f"{index + 1} of {len(list_designs())}: {name}", flush=True)
    path = write_results("guard", began, {"effect": EFFECT, "seed": given.seed, "rows": rows})
    print_table(
        ["noise", "way", "false REGRESSION", "at most", "blocks", "found at once", "found"],
        [
            [
                row["noise"],
                row["way"],
                f"{row['equal']['regression']['rate']:.2%}",
                f"{row['equal']['regression']['upper95']:.2%}",
                f"{row['equal']['mean_blocks']:.1f}",
                f"{row['slower']['first']:.0%}",
                f"{row['slower']['regression']['rate']:.0%}",
            ]
            for row in rows
        ],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
