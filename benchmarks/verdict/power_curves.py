"""Power of perfgate and of the rules in use today on the same simulated windows, also at equal false alarms.

Usage: python -m benchmarks.verdict.power_curves [--trials 500] [--quiet 2000] [--seed 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.gate import LOOKS, NOMINAL_SCORE, Batch, Design, decide_all, draw_batch, score_all
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.rivals import RIVALS, Evidence, limit_at
from benchmarks.verdict.simulator import DEFAULT, Noise, draw_history, slow_down, to_values
from perfgate.core import Outcome

Floats = NDArray[np.float64]

BLOCKS, WINDOWS, NIGHTS = 3, 3, 90
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
RATES = (0.01, 0.05)
DECODING = tuple(name for name in DEFAULT.metrics if name != "mean_ttft_ms")
KINDS: Mapping[str, tuple[str, ...]] = {
    "all but TTFT": DECODING,
    "median ITL alone": ("median_itl_ms",),
    "throughput alone": ("output_tok_per_s",),
    "P99 ITL alone": ("p99_itl_ms",),
}
OURS = "perfgate"
ELSEWHERE: Mapping[str, Noise] = {
    "start effects x 2": DEFAULT.scaled(start=2.0),
    "start effects x 4": DEFAULT.scaled(start=4.0),
    "session effects x 4": DEFAULT.scaled(session=4.0),
    "window noise x 2": DEFAULT.scaled(window=2.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Unchanged code, many times over: what was measured (`batch`), and the nightly runs before it."""

    batch: Batch
    nights: Floats

    def cut(self, trials: int) -> World:
        """The first `trials` of it."""
        batch = self.batch
        kept = replace(batch, windows=batch.windows[:trials], stored=batch.stored[:trials], spread=batch.spread[:trials])
        return World(batch=kept, nights=self.nights[:trials])

    def slowed(self, effect: Floats) -> World:
        """The same windows with the candidate slower by `effect` (log scale, by metric)."""
        windows = self.batch.windows.copy()
        windows[:, :, 1] += effect
        return replace(self, batch=replace(self.batch, windows=windows))

    def evidence(self, *, one_run: bool) -> Evidence:
        """What the other rules see: all windows of both arms, or a single run of each, as is the custom."""
        windows = self.batch.windows
        base, candidate = (windows[:, :, arm].reshape(len(windows), -1, windows.shape[-1]) for arm in (0, 1))
        nights = to_values(DEFAULT, self.nights)
        return Evidence(
            base=to_values(DEFAULT, base[:, :1] if one_run else base),
            candidate=to_values(DEFAULT, candidate[:, :1] if one_run else candidate),
            history=nights[:, :, 0] if one_run else nights.mean(axis=2),
            higher=DEFAULT.higher,
        )


def draw_world(rng: np.random.Generator, count: int, noise: Noise = DEFAULT) -> World:
    """Draw A/A sessions of 3 blocks of 3 windows and, for each, 90 nights of 3 windows each from sessions of their own."""
    batch = draw_batch(rng, Design(noise=noise, blocks=BLOCKS, windows=WINDOWS), count)
    nights = np.concatenate([draw_history(rng, noise, (min(250, count - at), NIGHTS), 3) for at in range(0, count, 250)])
    return World(batch=batch, nights=nights)


Scorer = Callable[[World], Floats]


def list_scorers() -> dict[str, tuple[Scorer, float]]:
    """Each rule on the same windows: how alarmed it is by each trial, and the limit that its users set."""

    def of_rival(index: int) -> Scorer:
        return lambda world: RIVALS[index].worst(world.evidence(one_run=False))

    scorers: dict[str, tuple[Scorer, float]] = {OURS: (lambda world: score_all(world.batch, LOOKS), NOMINAL_SCORE)}
    return scorers | {rival.name: (of_rival(index), rival.limit) for index, rival in enumerate(RIVALS)}


def study(quiet: World, trials: int) -> list[dict[str, Any]]:
    """Score all rules on unchanged and on slowed windows; one row per rule."""
    few = quiet.cut(trials)
    slowed = {
        (kind, effect): few.slowed(slow_down(DEFAULT.metrics, effect, only))
        for kind, only in KINDS.items()
        for effect in EFFECTS
    }
    rows: list[dict[str, Any]] = []
    for name, (score, limit) in list_scorers().items():
        calm = score(quiet)
        limits = {"own": limit} | {f"{rate:.0%} false alarms": limit_at(calm, rate) for rate in RATES}
        scores = {key: score(world) for key, world in slowed.items()}
        rows.extend(
            {
                "rule": name,
                "limit": label,
                "evidence": "the same 18 windows",
                "false_alarms": as_rate(int((calm > value).sum()), len(calm)),
                "power": {kind: _power(scores, kind, value) for kind in KINDS},
            }
            for label, value in limits.items()
        )
    return rows + [_customary(quiet, slowed, index) for index in range(len(RIVALS)) if RIVALS[index].runs == 1]


def study_transfer(rng: np.random.Generator, quiet: World, trials: int) -> list[dict[str, Any]]:
    """False alarms elsewhere, with the limits that gave 1 % under the assumed noise: a limit is set once, a machine changes."""
    worlds = {name: draw_world(rng, trials, noise) for name, noise in ELSEWHERE.items()}
    rows = []
    for name, (score, _) in list_scorers().items():
        limit = limit_at(score(quiet), RATES[0])
        alarms = {label: as_rate(int((score(world) > limit).sum()), trials) for label, world in worlds.items()}
        rows.append({"rule": name, "false_alarms": alarms})
    return rows


def _power(scores: Mapping[tuple[str, float], Floats], kind: str, limit: float) -> dict[str, float]:
    return {f"{effect:g}": round(float((scores[kind, effect] > limit).mean()), 4) for effect in EFFECTS}


def _customary(quiet: World, slowed: Mapping[tuple[str, float], World], index: int) -> dict[str, Any]:
    """A rule as its users run it: one run of the candidate, against one run of the base or single nightly runs."""
    rival = RIVALS[index]
    calm = rival.alarms(quiet.evidence(one_run=True))
    scores = {key: rival.worst(world.evidence(one_run=True)) for key, world in slowed.items()}
    return {
        "rule": rival.name,
        "limit": "own",
        "evidence": "one run an arm",
        "false_alarms": as_rate(int(calm.sum()), len(calm)),
        "power": {kind: _power(scores, kind, rival.limit) for kind in KINDS},
    }


def study_whole_gate(rng: np.random.Generator, trials: int) -> list[dict[str, Any]]:
    """The gate with all its looks, up to 6 blocks: outcomes and blocks spent."""
    rows = []
    for kind, only in KINDS.items():
        for effect in (0.02, 0.03, 0.05, 0.10):
            batch = draw_batch(rng, Design(), trials, slow_down(DEFAULT.metrics, effect, only))
            decisions = decide_all(batch)
            found = sum(decision.outcome is Outcome.REGRESSION for decision in decisions)
            passed = sum(decision.outcome in {Outcome.PASS, Outcome.IMPROVED} for decision in decisions)
            rows.append(
                {
                    "kind": kind,
                    "effect": effect,
                    "regression": as_rate(found, trials),
                    "passed": as_rate(passed, trials),
                    "mean_blocks": round(sum(decision.look for decision in decisions) / trials, 3),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500, help="verdicts for each effect")
    parser.add_argument("--quiet", type=int, default=2000, help="A/A verdicts that set the limits")
    parser.add_argument("--seed", type=int, default=2)
    given = parser.parse_args()
    began = time.perf_counter()
    rng = np.random.default_rng(given.seed)
    quiet = draw_world(rng, given.quiet)
    rows = study(quiet, given.trials)
    facts = {
        "seed": given.seed,
        "trials": given.trials,
        "effects": list(EFFECTS),
        "rows": rows,
        "whole_gate": study_whole_gate(rng, given.trials),
        "transfer": study_transfer(rng, quiet, given.trials),
    }
    path = write_results("power_curves", began, facts)
    for kind in KINDS:
        print(f"\npower where {kind} slows down, 3 blocks of 3 windows")
        print_table(
            ["rule", "evidence", "limit", "false alarms (95 % bound)", *(f"+{effect:.0%}" for effect in EFFECTS)],
            [
                [
                    row["rule"],
                    row["evidence"],
                    row["limit"],
                    f"{row['false_alarms']['rate']:.2%} ({row['false_alarms']['upper95']:.2%})",
                    *(f"{row['power'][kind][f'{effect:g}']:.1%}" for effect in EFFECTS),
                ]
                for row in rows
                if not row["limit"].startswith("5%")
            ],
        )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
