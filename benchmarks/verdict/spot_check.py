"""Hold the numbers of the simulations against whole verdicts: `judge()` on sessions made of the same windows must say the same.

Usage: python -m benchmarks.verdict.spot_check [--sessions 200] [--seed 3]
Exit code 1 when any verdict differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdict.gate import ALPHA, LOOKS, PLAN, Batch, Design, find_differences, find_spreads
from benchmarks.verdict.record import write_results
from benchmarks.verdict.simulator import DEFAULT, draw_windows, slow_down, to_values
from perfgate.check import judge
from perfgate.core import Arm, Fingerprint, Role, Run, Verdict, Window
from perfgate.evidence import Session
from perfgate.scenario.schema import Scenario, parse_scenario
from perfgate.stats.looks import SeriesDecision, decide
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import Anchor, NoiseModel, StoredStart

Floats = NDArray[np.float64]
REQUESTS, TOKENS, STORED, WINDOWS, BLOCKS = 400, 32, 20, 3, 6
FINGERPRINT = Fingerprint(facts={"hardware": "simulated"})
GATES = "\n".join(f"[gates.{name}]" for name in DEFAULT.metrics)
SCENARIO = f"""schema = 1
name = "simulated"
title = "Simulated windows"
alpha = {ALPHA}
[model]
path = "none"
architecture = "none"
experts = 8
top_k = 2
layers = 4
[server]
engine = "sglang"
[load]
num_prompts = {REQUESTS}
input_len = {TOKENS}
output_len = {TOKENS}
max_concurrency = 16
timeout_s = 100_000
[warmup]
steady_ratio = 0.5
[blocks]
windows = {WINDOWS}
looks = {list(LOOKS)}
{GATES}
"""


def make_baseline(scenario: Scenario, past: Floats) -> Baseline:
    """Stored A/A blocks from windows (blocks, 2 arms, windows, metrics) of badness, four blocks to a session."""
    starts = tuple(
        StoredStart(
            session=f"s{block // 4:02d}",
            block=block % 4 + 1,
            arm=arm,
            epoch=1,
            is_aa=True,
            at="2026-01-01",
            commit="c",
            environment="e",
        )
        for block in range(len(past))
        for arm in Arm
    )
    values = to_values(DEFAULT, past).reshape(len(starts), WINDOWS, -1)
    return Baseline(
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        fingerprint=FINGERPRINT,
        windows=WINDOWS,
        resident=scenario.blocks.resident,
        metrics={
            name: NoiseModel(
                metric=name,
                starts=starts,
                values=tuple(map(tuple, values[:, :, index].tolist())),
                anchor=Anchor(log_mean=0.0, at="2026-01-01", release="v0"),
            )
            for index, name in enumerate(DEFAULT.metrics)
        },
    )


def make_session(scenario: Scenario, windows: Floats) -> Session:
    """A session of windows (blocks, 2 arms, windows, metrics) of badness, each start warmed by two windows of its median."""
    made: list[Window] = []
    begun_s = 0.0
    for start, (block, arm, badness) in enumerate(_order_starts(windows), start=1):
        warm = np.median(badness, axis=0)
        # Copies are refused as evidence, so warm-up windows differ a little.
        rows = np.concatenate([[warm + 1e-4, warm + 2e-4], badness])
        for index, values in enumerate(to_values(DEFAULT, rows).tolist()):
            role = Role.WARMUP if index < 2 else Role.MEASURED
            named = dict(zip(DEFAULT.metrics, values, strict=True))
            took_s = REQUESTS * TOKENS / named["output_tok_per_s"]
            run = _make_run(named, len(made), took_s)
            ended_s = begun_s + took_s
            made.append(
                Window(run=run, arm=arm, block=block, start=start, index=index, role=role, begun_s=begun_s, ended_s=ended_s)
            )
            begun_s = ended_s + 1.0
    return Session(
        source="simulated",
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        fingerprints=dict.fromkeys(Arm, FINGERPRINT),
        windows=tuple(made),
    )


def _order_starts(windows: Floats) -> Iterator[tuple[int, Arm, Floats]]:
    for block, pair in enumerate(windows, start=1):
        yield from ((block, arm, pair[place]) for place, arm in enumerate(Arm))


def _make_run(values: dict[str, float], number: int, took_s: float) -> Run:
    tokens = REQUESTS * TOKENS
    return Run(
        source=f"{number}",
        values=values,
        workload={},
        requested=REQUESTS,
        completed=REQUESTS,
        input_tokens=tokens,
        output_tokens=tokens,
        duration_s=took_s,
    )


def differs(verdict: Verdict, decision: SeriesDecision) -> str | None:
    """Say how a verdict and the decision on plain numbers differ; None when they agree in outcome, look and every p-value."""
    if verdict.outcome is not decision.outcome:
        return f"outcome {verdict.outcome} against {decision.outcome}: {'; '.join(verdict.reasons)}"
    if verdict.blocks != decision.look:
        return f"{verdict.blocks} blocks against {decision.look}"
    found = {judgement.metric: judgement.p_value for judgement in verdict.judgements if judgement.gating}
    for name, finding in zip(DEFAULT.metrics, decision.findings, strict=True):
        p_value = found[name]
        if p_value is None or abs(p_value - finding.estimate.p_worse) > 1e-6:
            return f"{name}: p {p_value} against {finding.estimate.p_worse}"
    return None


def compare_all(rng: np.random.Generator, sessions: int) -> tuple[Counter[str], list[str]]:
    """Judge sessions with slow-downs from 0 to 5 %, each fifth without a baseline; return the outcomes and every difference."""
    scenario = parse_scenario(SCENARIO, "spot_check.py")
    outcomes: Counter[str] = Counter()
    differences = []
    for number in range(sessions):
        effect = slow_down(DEFAULT.metrics, (0.0, 0.02, 0.03, 0.05)[number % 4])
        design = Design(stored=STORED if number % 5 else 0, blocks=BLOCKS, windows=WINDOWS)
        past = draw_windows(rng, DEFAULT, (1, STORED, WINDOWS))
        windows = draw_windows(rng, DEFAULT, (1, BLOCKS, WINDOWS), effect)
        spread = np.median(find_spreads(past).reshape(1, 2 * STORED, -1), axis=1)
        stored = find_differences(past)[:, : design.stored]
        batch = Batch(metrics=DEFAULT.metrics, windows=windows, stored=stored, spread=spread, design=design)
        decision = decide(next(batch.trials()), PLAN)
        baseline = make_baseline(scenario, past[0]) if design.stored else None
        verdict = judge(make_session(scenario, windows[0]), scenario, baseline)
        outcomes[verdict.outcome.value] += 1
        if found := differs(verdict, decision):
            differences.append(f"session {number}: {found}")
    return outcomes, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    given = parser.parse_args()
    began = time.perf_counter()
    outcomes, differences = compare_all(np.random.default_rng(given.seed), given.sessions)
    facts = {"sessions": given.sessions, "seed": given.seed, "outcomes": dict(outcomes), "differences": differences}
    path = write_results("spot_check", began, facts)
    print(f"{given.sessions} sessions judged whole: {dict(sorted(outcomes.items()))}; {len(differences)} differ")
    for difference in differences[:10]:
        print(difference[:300])
    print(f"written to {path}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
