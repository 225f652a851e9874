"""False alarms and power of all rules on public same-commit nights: real serving noise, not chosen here.

Usage: python -m benchmarks.verdict.public_data --data DIR
DIR holds nm_vllm_serving.csv.gz; see `public.py`. A night is one run, so each rule gets what nights can give it:
- rules on a pair see one night a side; rules on history see the base night's level with the nights of other commits around
  it, each taken as its distance from its own commit's mean, so that real code changes are no noise;
- perfgate sees one block (base night, candidate night) with the noise of other commits' neighbouring nights, and, where a
  commit was measured often enough, three or more blocks at its real looks (no phi: a night has one window);
- Welch and Mann-Whitney need several runs a side, so they appear only with the blocks; benchstat would need four.
Tables with fewer than 20 comparisons say nothing of rates and are left out; the number of comparisons is still written.
A slow-down is added to the candidate: all metrics times 1 + effect.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from math import log1p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.gate import ALPHA, LOOKS, NOMINAL_SCORE, Stored, make_series, score_trial
from benchmarks.verdict.public import MARGINS, Pairing, load_groups, pair_commits, pair_nights
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.rivals import RIVALS, Evidence, Rival, limit_at

Floats = NDArray[np.float64]
ENOUGH = 20
EFFECTS = (0.02, 0.03, 0.05, 0.10)
FEW = ("mean_tpot_ms", "mean_ttft_ms")
GPUS = {
    "A10G, 11 metrics": ("NVIDIA A10G x 1", tuple(MARGINS)),
    "L4, 2 metrics": ("NVIDIA L4", FEW),
    "H100, 2 metrics": ("NVIDIA H100", FEW),
}
Scorer = Callable[[Sequence[Pairing], float], Floats]


def score_perfgate(metrics: Sequence[str], looks: tuple[int, ...]) -> Scorer:
    """The error budget at which perfgate alarms, for each pairing with a slow-down (ratio) added."""
    margins = [log1p(MARGINS[name]) for name in metrics]

    def score(pairings: Sequence[Pairing], effect: float) -> Floats:
        # A published night has no windows whose scatter could be known.
        usual = np.zeros(len(margins))
        trials = (
            (
                one.blocks[:, 1] - one.blocks[:, 0] + log1p(effect),
                Stored(differences=one.stored_differences, usual=usual, session_blocks=1),
            )
            for one in pairings
        )
        return np.array([score_trial(make_series(differences, stored, margins), looks) for differences, stored in trials])

    return score


def score_rival(rival: Rival) -> Scorer:
    """How alarmed a rule in use today is by each pairing with a slow-down (ratio) added."""

    def score(pairings: Sequence[Pairing], effect: float) -> Floats:
        return np.array([float(rival.worst(make_evidence(one, effect))[0]) for one in pairings])

    return score


def make_evidence(pairing: Pairing, effect: float) -> Evidence:
    """One pairing as the other rules see it; all metrics of the data are better when lower."""
    base, candidate = pairing.blocks[:, 0], pairing.blocks[:, 1] + log1p(effect)
    history = np.concatenate([base.mean(axis=0) + pairing.stored_deviations, base])
    return Evidence(
        base=np.exp(base)[None],
        candidate=np.exp(candidate)[None],
        history=np.exp(history)[None],
        higher=np.zeros(base.shape[1], dtype=bool),
    )


def study(pairings: Sequence[Pairing], metrics: Sequence[str], looks: tuple[int, ...], runs: int) -> list[dict[str, Any]]:
    """One row per rule, at its own limit and at the limit that 1 % of these pairings exceed."""
    scorers: dict[str, tuple[Scorer, float]] = {"perfgate": (score_perfgate(metrics, looks), NOMINAL_SCORE)}
    scorers |= {rival.name: (score_rival(rival), rival.limit) for rival in RIVALS if rival.runs <= runs}
    rows: list[dict[str, Any]] = []
    for name, (score, own) in scorers.items():
        calm = score(pairings, 0.0)
        slowed = {effect: score(pairings, effect) for effect in EFFECTS}
        rows.extend(
            {
                "rule": name,
                "limit": label,
                "false_alarms": as_rate(int((calm > limit).sum()), len(calm)),
                "power": {f"{effect:g}": round(float((scores > limit).mean()), 4) for effect, scores in slowed.items()},
            }
            for label, limit in (("own", own), ("1% false alarms", limit_at(calm, 0.01)))
        )
    return rows


def study_all(data: Path) -> list[dict[str, Any]]:
    """Every table: one night a side on each GPU, then commits with at least three blocks."""
    tables = []
    for label, (gpu, metrics) in GPUS.items():
        groups = load_groups(data, gpu, metrics)
        pairs = [one for one in pair_nights(groups) if len(one.stored_differences) > 2]
        blocks = [one for one in pair_commits(groups, 3) if len(one.stored_differences) > 2]
        for name, found, looks, runs in (("one night a side", pairs, (1,), 1), ("three or more blocks", blocks, LOOKS, 3)):
            rows = study(found, metrics, looks, runs) if len(found) >= ENOUGH else []
            tables.append({"table": f"{label}, {name}", "comparisons": len(found), "rows": rows})
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with nm_vllm_serving.csv.gz")
    began = time.perf_counter()
    tables = study_all(parser.parse_args().data)
    path = write_results("public_data", began, {"alpha": ALPHA, "tables": tables})
    for table in tables:
        print(f"\n{table['table']}: {table['comparisons']} comparisons")
        print_table(
            ["rule", "limit", "false alarms", "95 % bound", *(f"+{effect:.0%}" for effect in EFFECTS)],
            [
                [
                    row["rule"],
                    row["limit"],
                    f"{row['false_alarms']['count']} of {row['false_alarms']['tries']} ({row['false_alarms']['rate']:.1%})",
                    f"{row['false_alarms']['upper95']:.1%}",
                    *(f"{row['power'][f'{effect:g}']:.1%}" for effect in EFFECTS),
                ]
                for row in table["rows"]
            ],
        )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
