"""Whole verdicts under thirty kinds of noise: false alarms, power, and how often a metric that lost its margin passes.

Usage: python -m benchmarks.verdict.cases [--verdicts 6000] [--trials 2000] [--seed 7]
Each case is judged by the rule that ships and, on the same windows, by rule 2026-11.8.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.verdict.gate import Design, decide_all, draw_batch, list_rules
from benchmarks.verdict.record import as_rate, print_table, write_results
from benchmarks.verdict.simulator import Floats, Noise, Spread, slow_down
from perfgate.core import Outcome

CHUNK = 1000
GATES = ("output_tok_per_s", "p99_itl_ms", "median_itl_ms")
"""One metric of each family gates: throughput, the tail, a decode step."""


def make_noise(
    block: tuple[float, float, float] = (0.0, 0.0, 0.0), offset: float | tuple[float, ...] = 0.0, **more: Any
) -> Noise:
    """Windows as measured on an H200; `block` are the SDs of starts, `offset` those of sessions' offsets, in percent."""
    windows, tails = (0.010, 0.040, 0.0056), (None, 4.0, None)
    offsets = offset if isinstance(offset, tuple) else (offset,) * len(GATES)
    spreads = {
        name: Spread(window=window, start=start / 100, session=0.006, tail_df=tail, offset=each / 100)
        for name, window, tail, start, each in zip(GATES, windows, tails, block, offsets, strict=True)
    }
    return Noise(spreads=spreads, **({"correlation": 0.7, "stall_rate": 0.0, "unrest": 0.0} | more))


STARTS = (1.1, 2.0, 0.75)
"""Offsets of starts on hosts with 16 and 32 cores, in percent."""

AS_RECORDED = (0.29, 1.0, 0.52)
"""What makes a block's difference scatter as within the recorded sessions of equal arms: 1.03, 4.2 and 0.91 %."""

OFFSET = (0.71, 0.0, 0.58)
"""The offsets of those sessions; P99 ITL had none that its noise let through."""

OFFSET_OF_ALL = (0.41, 0.0, 0.29)
"""The same over all 18 recorded sessions of equal arms whose servers lived side by side, seven of them of a model that routes:
docs/evidence/noise.md."""

MIXED = Noise(
    spreads={
        name: Spread(window=window, start=start, session=0.006)
        for name, window, start in zip(GATES, (0.0244, 0.0758, 0.0103), (0.0141, 0.0242, 0.0071), strict=True)
    },
    correlation=0.7,
    stall_rate=0.0,
    unrest=0.0,
)
"""Windows and starts of the 44 recorded blocks of equal arms of mixed-c16 on H200s: docs/evidence/error-rates.md."""

POSITIONS = (-0.0045, 0.0, 0.0, -0.0035, 0.0024, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of noise. `is_recorded` says that stored sessions of equal arms hold it: there the rule is to keep its promise."""

    design: Design
    is_recorded: bool = True


def scale(noise: Noise, ratio: float) -> Noise:
    """The same machine on a day with `ratio` times the noise, sessions' offsets included."""
    spreads = {
        name: replace(one, window=one.window * ratio, start=one.start * ratio, offset=one.offset * ratio)
        for name, one in noise.spreads.items()
    }
    return replace(noise, spreads=spreads)


def list_cases() -> Mapping[str, Case]:
    """The cases by name, in the order of the page."""
    quiet, hosts, real = make_noise(), make_noise(STARTS), make_noise(AS_RECORDED, OFFSET)
    all_kinds = replace(hosts, positions=POSITIONS, walk=0.003, memory=0.7, stall_rate=1 / 8)
    design = Design(stored=20, reruns=False)
    drawn = {
        "windows alone": quiet,
        "position effects as measured": replace(quiet, positions=POSITIONS),
        "position effects x 3": replace(quiet, positions=tuple(3 * one for one in POSITIONS)),
        "random walk, 0.3 % a window": replace(quiet, walk=0.003),
        "random walk, 0.6 % a window": replace(quiet, walk=0.006),
        "windows correlated by 0.7": replace(quiet, memory=0.7),
        "stalls in 1 of 8 windows": replace(quiet, stall_rate=1 / 8),
        "starts of hosts with 16 and 32 cores": hosts,
        "position, walk, correlation, stalls and starts together": all_kinds,
        "restless blocks and sessions": replace(hosts, unrest=0.5, block_unrest=0.7),
        "20 % of starts 3 % slower": replace(hosts, slow_starts=(0.2, 0.03)),
        "5 % of starts 5 % slower": replace(hosts, slow_starts=(0.05, 0.05)),
        "50 % of starts 5 % slower": replace(hosts, slow_starts=(0.5, 0.05)),
        "offset of 0.5 %": make_noise((0.2, 0.6, 0.3), 0.5),
        "offset of 0.8 %": make_noise((0.2, 0.6, 0.3), 0.8),
        "offset of 1.0 %": make_noise((0.2, 0.6, 0.3), 1.0),
        "as recorded, without offset": make_noise(AS_RECORDED),
        "as recorded": real,
        "as recorded, half the offset": make_noise(AS_RECORDED, tuple(one / 2 for one in OFFSET)),
    }
    cases = {name: Case(design=replace(design, noise=noise)) for name, noise in drawn.items()}
    heavy = {name: replace(one, tail_df=2.5) for name, one in quiet.spreads.items()}
    cases["windows of Student's t, 2.5 df"] = Case(design=replace(design, noise=replace(quiet, spreads=heavy)))
    of_real = replace(design, noise=real)
    cases |= {
        "as recorded, one stored session of 2 blocks": Case(design=replace(of_real, stored=2, session_blocks=2)),
        "as recorded, one stored session of 10 blocks": Case(design=replace(of_real, stored=10, session_blocks=10)),
        "as recorded, no baseline": Case(design=replace(of_real, stored=0)),
        "as recorded, 40 stored blocks": Case(design=replace(of_real, stored=40)),
        "stored on a quiet host of 64 cores": Case(
            design=replace(of_real, stored_noise=make_noise((0.1, 0.5, 0.15), 0.1), is_same_host=False)
        ),
    }
    unseen = {
        "one quiet session of 10 blocks stored (SD / 1.73)": replace(
            of_real, stored_noise=scale(real, 1 / 1.73), stored=10, session_blocks=10
        ),
        "five quiet days stored (SD / 1.73)": replace(of_real, stored_noise=scale(real, 1 / 1.73)),
        "five quiet days stored (SD / 3)": replace(of_real, stored_noise=scale(real, 1 / 3)),
        "offset of 0.8 % that no stored session has": replace(
            of_real, noise=make_noise((0.2, 0.6, 0.3), 0.8), stored_noise=make_noise((0.2, 0.6, 0.3))
        ),
        "starts three times as far apart as stored": replace(design, noise=make_noise((3.3, 6.0, 2.25)), stored_noise=hosts),
        "slow starts (20 %, 5 %) that no stored session has": replace(
            design, noise=replace(hosts, slow_starts=(0.2, 0.05)), stored_noise=hosts
        ),
    }
    cases |= {name: Case(design=one, is_recorded=False) for name, one in unseen.items()}
    of_all = make_noise(AS_RECORDED, OFFSET_OF_ALL)
    apart = make_noise((2.0, 8.0, 1.12))
    # Behind the others, for a case's place is part of its seed.
    return cases | {
        "as recorded in all 18 sessions": Case(design=replace(design, noise=of_all)),
        "as mixed-c16 on H200s, no baseline": Case(design=replace(design, noise=MIXED, windows=5, stored=0)),
        "as mixed-c16 on H200s": Case(design=replace(design, noise=MIXED, windows=5)),
        "starts twice as far apart as windows, no baseline": Case(
            design=replace(design, noise=apart, stored=0), is_recorded=False
        ),
    }


EFFECTS: Mapping[str, tuple[float, tuple[str, ...] | None]] = {
    "+2 % in all": (0.02, None),
    "+3 % in all": (0.03, None),
    "+3 % in throughput alone": (0.03, ("output_tok_per_s",)),
    "+3 % in median ITL alone": (0.03, ("median_itl_ms",)),
}


def count(rng: np.random.Generator, design: Design, verdicts: int, effect: Floats | None = None) -> dict[str, dict[str, Any]]:
    """Judge `verdicts` verdicts by each rule; every rule sees the same windows."""
    outcomes: dict[str, Counter[Outcome]] = {rule: Counter() for rule in list_rules()}
    blocks = dict.fromkeys(outcomes, 0)
    for size in _chunks(verdicts):
        batch = draw_batch(rng, design, size, effect)
        for rule, plan in list_rules().items():
            for decision in decide_all(replace(batch, is_former=rule == "former"), plan):
                outcomes[rule][decision.outcome] += 1
                blocks[rule] += decision.look
    return {rule: describe(counted, blocks[rule], verdicts) for rule, counted in outcomes.items()}


def _chunks(total: int) -> Iterator[int]:
    for first in range(0, total, CHUNK):
        yield min(CHUNK, total - first)


def describe(outcomes: Counter[Outcome], blocks: int, verdicts: int) -> dict[str, Any]:
    """The rates of one rule."""
    return {
        "regression": as_rate(outcomes[Outcome.REGRESSION], verdicts),
        "pass": as_rate(outcomes[Outcome.PASS] + outcomes[Outcome.IMPROVED], verdicts),
        "inconclusive": as_rate(outcomes[Outcome.INCONCLUSIVE], verdicts),
        "mean_blocks": round(blocks / verdicts, 3),
    }


def study(case: Case, seed: tuple[int, int], verdicts: int, trials: int) -> dict[str, Any]:
    """One row: equal arms, then each effect. `seed` is the run's and the case's place."""
    row: dict[str, Any] = {"is_recorded": case.is_recorded}
    row["equal"] = count(np.random.default_rng([*seed, 0]), case.design, verdicts)
    for number, (label, (ratio, only)) in enumerate(EFFECTS.items(), start=1):
        effect = slow_down(GATES, ratio, only)
        row[label] = count(np.random.default_rng([*seed, number]), case.design, trials, effect)
    return row


def _show(row: Mapping[str, Any]) -> Iterator[str]:
    now, before = row["equal"]["present"]["regression"], row["equal"]["former"]["regression"]
    yield f"{now['rate']:.2%} ({now['upper95']:.2%})"
    yield f"{before['rate']:.2%}"
    for rule in ("present", "former"):
        yield f"{row['+2 % in all'][rule]['regression']['rate']:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=6000, help="of equal arms, for each case")
    parser.add_argument("--trials", type=int, default=2000, help="with a loss, for each case and loss")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    began = time.perf_counter()
    cases = list_cases()
    rows = []
    for index, (name, case) in enumerate(cases.items()):
        rows.append({"case": name, **study(case, (given.seed, index), given.verdicts, given.trials)})
        print(f"{len(rows)} of {len(cases)}: {name}", flush=True)
    path = write_results("cases", began, {"metrics": list(GATES), "effects": list(EFFECTS), "seed": given.seed, "rows": rows})
    print_table(
        ["case", "recorded", "false REGRESSION (bound)", "before", "+2 % found", "before"],
        [[row["case"], "yes" if row["is_recorded"] else "no", *_show(row)] for row in rows],
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
