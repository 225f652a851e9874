"""Everything that is counted over the replays of one case, and what its blocks say by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import expm1, sqrt
from statistics import mean, median
from typing import Any

from benchmarks.error_rates.custom import judge_all
from benchmarks.error_rates.rates import SEED, tally
from benchmarks.error_rates.recordings import Recording
from benchmarks.error_rates.replays import (
    Case,
    Composer,
    Pick,
    Shelf,
    drop_unasked,
    find_stored,
    list_picks,
    replay,
    sample,
    walk,
)
from perfgate.core import Arm, Outcome
from perfgate.evidence import Session
from perfgate.gate.calibrate import STEP
from perfgate.metrics import METRICS
from perfgate.stats.components import measure_variance
from perfgate.stats.looks import decide
from perfgate.stats.moderated import find_quantile
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.policy import Policy, fix_policy
from perfgate.verdict.series import read_series

RIVAL_BLOCKS = 2
"""Blocks of the comparison with other rules: what the verdict mostly needs, so that all see as much."""
TOLD_BLOCKS = 10
"""Blocks of equal arms of one design below which replays of them, by this rule or by others, count too little to be told."""

ORDERED = "output_tok_per_s"
TAIL_METRICS = ("p99_itl_ms", "es5_itl_ms", "p95_itl_ms", "max_itl_ms", STEP)
"""Where rare slow steps may show, and the middle, where they must not."""


def study_case(case: Case, quiet: Case | None, shelves: Sequence[tuple[str, Shelf | None]], limit: int) -> dict[str, Any]:
    """All replays of one case, at each length that the blocks allow, with every kind of stored noise."""
    composer, total = Composer(case=case), max(Counter(case.rigs).values())
    lengths = [look for look in case.scenario.blocks.looks if look <= total]
    rows = [row for kind in shelves for length in lengths if (row := study_length(composer, length, kind, limit))]
    effects = [one.effect for one in case.recordings if one.effect is not None]
    full = shelves[-1][1]
    return {
        "scenario": case.scenario.name,
        "workload": case.scenario.workload_hash,
        "hardware": case.recordings[0].machine.hardware,
        "kind": case.kind,
        "label": case.label,
        "folders": [one.name for one in case.recordings],
        "blocks": len(case.blocks),
        "looks": list(case.scenario.blocks.looks),
        "effect": mean(effects) if effects else None,
        "effect_from": case.recordings[0].effect_from,
        "direct": case.recordings[0].is_direct,
        "differences": describe_differences(case),
        "seen": find_seen(case),
        "order": describe_order(case),
        "tail": describe_tail(case),
        "tests": describe_tests(composer, full),
        "live": [describe_live(case, one, full) for one in case.recordings],
        "rows": rows,
        "replays": sum(row["replays"] for row in rows),
        "rivals": study_rivals(case, quiet, full, limit),
    }


def study_length(composer: Composer, length: int, kind: tuple[str, Shelf | None], limit: int) -> dict[str, Any] | None:
    """The replays of one length by one kind of stored noise; None where that would be no noise, or as without."""
    case, (name, shelf) = composer.case, kind
    every = list_picks(case, length)
    if not every:
        return None
    picks = sample(every, limit, SEED)
    baseline = find_stored(shelf, case, picks[0])
    gated = find_gated(composer, picks[0], baseline)
    if shelf and baseline is None:
        return None
    if shelf and name == "responses" and gated == find_gated(composer, picks[0], find_stored(shelf.bare, case, picks[0])):
        return None
    found = [replay(composer, pick, find_stored(shelf, case, pick)) for pick in picks]
    last = case.scenario.blocks.looks[-1]
    whole_s = last * median(block.machine_s for block in case.blocks) if length < last else None
    return {
        "noise": name,
        "stored": bool(shelf),
        "stored_blocks": baseline.blocks if baseline else 0,
        "gated": gated,
        "blocks": length,
        "distinct": len(every),
        **tally(found, list(walk(composer, length, shelf)), len(case.blocks), whole_s),
    }


def find_gated(composer: Composer, pick: Pick, baseline: Baseline | None) -> list[str]:
    """The metrics that may fail a replay."""
    return list(fix_policy(composer.compose(pick), composer.case.scenario, baseline).gated)


def describe_tests(composer: Composer, shelf: Shelf | None) -> dict[str, Any]:
    """What the rule asks of each metric over all blocks of a case: the mean loss, and how large it had to be to be found.

    `phi` says how many times noisier than stored the windows scattered, which the stored noise is inflated by.
    """
    case = composer.case
    blocks = max((look for look in case.scenario.blocks.looks if look <= len(case.blocks)), default=0)
    pick = tuple((index, False) for index in range(blocks))
    if not blocks:
        return {}
    session = composer.compose(pick)
    policy = fix_policy(session, case.scenario, find_stored(shelf, case, pick))
    shown = {}
    for reading in read_series(drop_unasked(session, policy), policy):
        family = len(policy.gated) + (reading.metric in policy.not_gating)
        estimate = reading.series.estimate(blocks)
        reach = estimate.reach(1 - policy.plan.alpha_look / family)
        shown[reading.metric] = {
            "blocks": blocks,
            "mean": estimate.mean,
            "needed": max(reach, reading.series.margin_log / 2) if estimate.df else None,
            "phi": reading.series.phi[blocks - 1] if reading.series.phi else 1.0,
        }
    return shown


def compose_whole(case: Case) -> tuple[Session, Policy]:
    """All blocks of a case as one session, and how it is judged without stored noise."""
    session = Composer(case=case).compose(tuple((index, False) for index in range(len(case.blocks))))
    return session, fix_policy(session, case.scenario, None)


def describe_differences(case: Case) -> dict[str, Any]:
    """Mean and spread over all blocks of what each metric lost, as log badness, with a two-sided 90 % t interval."""
    session, policy = compose_whole(case)
    shown = {}
    for reading in read_series(session, policy):
        shown[reading.metric] = describe_spread(reading.series.differences)
    return shown


def describe_spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and spread of a value a block, with half of a two-sided 90 % t interval where there are two."""
    sd = sqrt(measure_variance(values)) if len(values) > 1 else None
    reach = find_quantile(0.95, len(values) - 1) * sd / sqrt(len(values)) if sd is not None else None
    return {"mean": mean(values) if values else None, "sd": sd, "reach": reach, "blocks": len(values)}


def describe_order(case: Case) -> list[dict[str, Any]] | None:
    """What the arm called candidate won over the base in output throughput, as log ratios: by rig, and by who began the block.

    With two-sided 90 % t intervals as if blocks were independent. None but for equal arms.
    """
    if not case.is_symmetric:
        return None
    session, policy = compose_whole(case)
    [losses] = [one.series.differences for one in read_series(session, policy) if one.metric == ORDERED]
    rows = []
    for rig in dict.fromkeys(case.rigs):
        won = [(-loss, lead) for loss, lead, own in zip(losses, case.leads, case.rigs, strict=True) if own == rig]
        rows.append(
            {
                "cores": next(one.cores for one in case.recordings if one.rig == rig),
                "all": describe_spread([value for value, _ in won]),
                **{arm.value: describe_spread([value for value, lead in won if lead is arm]) for arm in Arm},
            }
        )
    return rows


def find_seen(case: Case) -> dict[str, float | None] | None:
    """What the length of a decode step showed over all blocks, as a ratio, with its two-sided 90 % interval by those blocks.

    What was spent is a bound from below: a kernel between two others also costs what those two had overlapped.
    """
    found = describe_differences(case).get(STEP)
    if found is None:
        return None
    low, high = (None, None) if found["reach"] is None else (found["mean"] - found["reach"], found["mean"] + found["reach"])
    return {
        "ratio": expm1(found["mean"]),
        "low": None if low is None else expm1(low),
        "high": None if high is None else expm1(high),
    }


def describe_tail(case: Case) -> dict[str, Any] | None:
    """What the tail and the middle of the intervals between tokens showed of rare slow steps, by the blocks' own scatter.

    Metrics are read whether or not the scenario gates them. None where not only some steps were slowed.
    """
    one = case.recordings[0]
    if one.injection is None or one.injection.period == 1 or one.effect is None:
        return None
    session, policy = compose_whole(case)
    policy = replace(policy, metrics=TAIL_METRICS)
    shown = {}
    for reading in read_series(session, policy):
        found = decide([replace(reading.series, gating=True)], policy.plan)
        estimate = reading.series.estimate(len(case.blocks))
        reach = estimate.reach(0.95) if estimate.df else None
        shown[reading.metric] = {
            "ratio": expm1(estimate.mean),
            "low": expm1(estimate.mean - reach) if reach is not None else None,
            "high": expm1(estimate.mean + reach) if reach is not None else None,
            "outcome": found.outcome.value,
        }
    return {
        "period": one.injection.period,
        "spent_us": one.spent_us,
        "metrics": shown,
    }


def describe_live(case: Case, one: Recording, shelf: Shelf | None) -> dict[str, Any]:
    """The verdict of a folder as it stands, by the noise of the other blocks where there are some.

    `exchanged` is what equal arms end in with their labels exchanged.
    """
    alone = Composer(case=Case(label=case.label, kind=case.kind, recordings=(one,)))
    pick = tuple((index, False) for index in range(len(one.blocks)))
    without = frozenset(block.key for block in one.blocks) if case.kind == "aa" else frozenset()
    baseline = shelf.take(without, "" if case.kind == "aa" else case.label, one.rig) if shelf else None
    found = replay(alone, pick, baseline)
    outcome = found.outcome
    other = replay(alone, tuple((index, True) for index, _ in pick), baseline) if case.is_symmetric else None
    return {
        "folder": one.name,
        "outcome": outcome.value,
        "blocks": found.blocks if outcome is not Outcome.INVALID else 0,
        "stored_blocks": baseline.blocks if baseline else 0,
        "minutes": found.machine_s / 60,
        "exchanged": {"outcome": other.outcome.value, "reasons": list(other.reasons)} if other else None,
    }


def study_rivals(case: Case, quiet: Case | None, shelf: Shelf | None, limit: int) -> dict[str, Any] | None:
    """The other rules on the same windows, over the metrics that gate, at a length at which blocks are left as history.

    None where equal arms of this design are few. A growth over a start is no number of a window, and none of those rules asks
    about it.
    """
    if quiet is None or len(quiet.blocks) < TOLD_BLOCKS:
        return None
    looks = [look for look in case.scenario.blocks.looks if look <= min(max(Counter(case.rigs).values()), RIVAL_BLOCKS)]
    if not looks:
        return None
    session = Composer(case=case).compose(((0, False),))
    gated = fix_policy(session, case.scenario, shelf.take() if shelf else None).gated
    gated = tuple(name for name in gated if not METRICS[name].growth_of)
    picks = sample(list_picks(case, looks[-1]), limit, SEED)
    return {"blocks": looks[-1], "metrics": list(gated), "rows": judge_all(case, quiet, picks, gated)}
