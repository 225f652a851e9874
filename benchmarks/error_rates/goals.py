"""What was promised, whether the recorded blocks show it, and what it would take where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import log1p
from statistics import median
from typing import Any

from scipy.optimize import brentq

from benchmarks.error_rates.recordings import Recording
from perfgate.core import Role
from perfgate.stats.binomial import bound_rate
from perfgate.stats.power import find_power, find_smallest_effect
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.power import Cost, SampleSize, Study, find_cheapest

MAX_FALSE = 0.01
MIN_REPLAYS = 300
MAX_MINUTES = 10.0
NEAR = (0.75, 1.15)
"""A case answers for an effect when what it spent is between these shares of it: not so large that power is given away."""

AROUND = (0.5, 2.0)
"""Where no case answers, one between these shares is told beside the goal."""

QUIETEST, LOUDEST = 1e-6, 1.0
"""Blocks that differ by no more are all alike, and by those that differ so much no goal is met."""

STALL_LOSS = 0.05
"""A window that lost so much of its start's median throughput is called stalled here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerGoal:
    """A loss of `effect` in `metric` must be found this often, within so many GPU-minutes where a limit was set.

    `margin` is the metric's own in the scenario that is to find it, where that is not the recorded one's.
    """

    metric: str
    effect: float
    power: float
    minutes: float | None = None
    margin: float | None = None


POWER_GOALS = (
    PowerGoal(metric="median_itl_ms", effect=0.01, power=0.90, minutes=9.0, margin=0.01),
    PowerGoal(metric="median_itl_ms", effect=0.02, power=0.90, minutes=5.0),
    PowerGoal(metric="median_itl_ms", effect=0.03, power=0.95),
    PowerGoal(metric="output_tok_per_s", effect=0.03, power=0.95, minutes=5.0),
    PowerGoal(metric="p99_itl_ms", effect=0.10, power=0.90, minutes=7.0),
)


def find_cost(quiet: Sequence[Recording]) -> Cost:
    """What a start and a window took, with warm compile caches as a runner has them: a first block's cold ones are no median.

    Servers that load side by side share their start, so an arm is charged half a block's.
    """
    blocks = [block for recording in quiet for block in recording.blocks]
    windows = [window for block in blocks for window in block.windows]
    warmups = sum(window.role is Role.WARMUP for window in windows)
    return Cost(
        start_s=median(block.took_s - block.windows_s for block in blocks) / 2,
        window_s=median(window.ended_s - window.begun_s for window in windows),
        warmups=round(warmups / (2 * len(blocks))),
    )


def describe_noise(study: Study, quiet: Sequence[Recording]) -> dict[str, Any]:
    """The noise of one design in numbers: where it comes from, what it costs to measure, what the rule finds at each look."""
    blocks = [block for recording in quiet for block in recording.blocks]
    windows = study.scenario.blocks.windows
    looks = study.scenario.blocks.looks
    metrics = {}
    for name in study.metrics:
        noise = study.baseline.metrics[name]
        parts = noise.components
        metrics[name] = {
            "window_sd": parts.window.variance**0.5,
            "start_sd": parts.start.variance**0.5,
            "session_sd": parts.session.variance**0.5,
            "block_sd": noise.block_variance**0.5,
            "smallest": {
                str(look): find_smallest_effect(study.trial(name, SampleSize(blocks=look, windows=windows))) for look in looks
            },
            "gates": name in study.gating,
            "responds": noise.is_responsive,
            "responses": [asdict(row) for row in noise.sensitivity],
        }
    stalls = [count_stalls(block.windows) for block in blocks]
    return {
        "blocks": len(blocks),
        "sessions": len(quiet),
        "windows": windows,
        "resident": study.scenario.blocks.resident,
        "looks": list(looks),
        "cost": {"start_s": study.cost.start_s, "window_s": study.cost.window_s, "warmups": study.cost.warmups},
        "block_minutes": median(block.machine_s for block in blocks) / 60,
        "stalled": sum(stalled for stalled, _ in stalls),
        "measured": sum(measured for _, measured in stalls),
        "metrics": metrics,
    }


def count_stalls(windows: Sequence[Any]) -> tuple[int, int]:
    """How many measured windows lost STALL_LOSS of their own start's median throughput, and how many were measured."""
    starts: dict[int, list[float]] = {}
    for window in windows:
        if window.role is Role.MEASURED:
            starts.setdefault(window.start, []).append(window.run.values["output_tok_per_s"])
    stalled = sum(value < (1 - STALL_LOSS) * median(values) for values in starts.values() for value in values)
    return stalled, sum(map(len, starts.values()))


def check_power(goal: PowerGoal, study: Study, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hold one goal against the injected case that answers for it."""
    shown: dict[str, Any] = {"metric": goal.metric, "effect": goal.effect, "goal": goal.power, "status": "not measured"}
    shown |= {"most_minutes": goal.minutes, "margin": goal.margin, "needed": find_needed(1 - goal.power)}
    shown["nearest"] = describe_nearest(goal, cases)
    shown["own_margin"] = study.scenario.margin_ratio(goal.metric)
    shown["own_design"] = goal.metric in study.metrics and _describe_cheapest(study, goal) is not None
    study = set_margin(study, goal)
    shown |= dict.fromkeys(
        ("predicted", "gates", "cheapest", "case", "spent", "seen", "blocks", "found", "verdict", "test", "looks", "minutes")
    )
    shown |= {"others": [], "asked": None}
    if goal.metric in study.metrics:
        looks, windows = study.scenario.blocks.looks, study.scenario.blocks.windows
        trials = {look: study.trial(goal.metric, SampleSize(blocks=look, windows=windows)) for look in looks}
        shown["predicted"] = {str(look): find_power(trial, log1p(goal.effect)) for look, trial in trials.items()}
        shown["gates"] = goal.metric in study.gating
        shown["cheapest"] = _describe_cheapest(study, goal)
        shown["asked"] = describe_asked(study, goal)
    # What was recorded was judged by its own margin.
    case = find_case(goal, cases) if goal.margin is None else None
    if case is None or goal.metric not in case["rows"][-1]["alone"]:
        return shown
    row = case["rows"][-1]
    found = row["alone"][goal.metric]["regression"]
    status = grade(found, goal.power, is_larger=is_larger(case["seen"], goal.effect))
    is_late = goal.minutes is not None and row["minutes"]["median"] > goal.minutes
    return shown | {
        "case": case["label"],
        "spent": case["effect"],
        "seen": case["seen"],
        "blocks": row["blocks"],
        "found": found,
        "verdict": row["regression"],
        "test": case["tests"].get(goal.metric),
        "looks": case["looks"],
        "minutes": row["minutes"]["median"],
        "others": [
            describe_other(other, goal.metric)
            for other in list_near(goal, cases)
            if other is not case and goal.metric in other["rows"][-1]["alone"]
        ],
        "status": "NOT met, for it takes longer" if status == "met" and is_late else status,
    }


def set_margin(study: Study, goal: PowerGoal) -> Study:
    """The study by the margin that a goal asks for."""
    if goal.margin is None or goal.metric not in study.scenario.gates:
        return study
    gates = {**study.scenario.gates, goal.metric: replace(study.scenario.gates[goal.metric], margin=goal.margin)}
    return replace(study, scenario=replace(study.scenario, gates=gates))


def describe_nearest(goal: PowerGoal, cases: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The session nearest to a goal for which none answers; None where one does, or none is near."""
    near = [case for case in list_between(AROUND, goal, cases) if goal.metric in case["rows"][-1]["alone"]]
    if find_case(goal, cases) is not None or not near:
        return None
    case = min(near, key=lambda one: abs(one["effect"] - goal.effect))
    row = case["rows"][-1]
    return {
        "case": case["label"],
        "spent": case["effect"],
        "seen": case["seen"],
        "blocks": row["blocks"],
        "found": row["alone"][goal.metric]["regression"],
        "minutes": row["minutes"]["median"],
    }


def grade(found: dict[str, Any], goal: float, *, is_larger: bool = False) -> str:
    """What may be said of a power goal. Met only where verdicts that share no block bound the power from below by the goal.

    Replays share blocks, so they can miss a goal, but never meet one by themselves; and fewer of them than it would take if
    they were independent prove nothing at all. Finding a slow-down that showed as larger than the goal's meets no goal.
    """
    alone = found["disjoint"]
    if found["rate"] < goal:
        return "NOT met"
    if alone and alone["rate"] < goal:
        return "NOT shown"
    if alone and alone["lower95"] >= goal:
        return "NOT shown, the slow-down was larger" if is_larger else "met"
    if found["tries"] < find_needed(1 - goal):
        return f"found {found['count']} of {found['tries']}, proves nothing yet"
    return "found, too few blocks to prove it"


def is_larger(seen: dict[str, float | None] | None, effect: float) -> bool:
    """Whether a slow-down surely showed as more than may answer for `effect`."""
    low = seen["low"] if seen else None
    return low is not None and low > NEAR[1] * effect


def find_case(goal: PowerGoal, cases: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The injected case near the goal's effect that has most blocks, of several the one that spent nearest to it."""
    return min(list_near(goal, cases), key=lambda case: (-case["blocks"], abs(case["effect"] - goal.effect)), default=None)


def list_near(goal: PowerGoal, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The injected cases near the goal's effect."""
    return list_between(NEAR, goal, cases)


def list_between(shares: tuple[float, float], goal: PowerGoal, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The injected cases that spent between these shares of the goal's effect in each step."""
    low, high = shares
    return [
        case
        for case in cases
        if case["kind"] == "injected" and case["direct"] and case["rows"] and case["effect"]
        if low * goal.effect <= case["effect"] <= high * goal.effect
    ]


def describe_other(case: dict[str, Any], metric: str) -> dict[str, Any]:
    """What a case near a goal showed that is not the goal's own evidence."""
    row = case["rows"][-1]
    return {
        "case": case["label"],
        "folders": case["folders"],
        "blocks": row["blocks"],
        "found": row["alone"][metric]["regression"],
        "test": case["tests"].get(metric),
    }


def _describe_cheapest(study: Study, goal: PowerGoal) -> dict[str, Any] | None:
    cheapest = find_cheapest(study, goal.effect, [goal.metric], wanted_power=goal.power)
    if cheapest.design is None:
        return None
    return {
        "blocks": cheapest.design.blocks,
        "windows": cheapest.design.windows,
        "requests": cheapest.design.request_ratio,
        "minutes": cheapest.minutes,
        "power": cheapest.power,
    }


def describe_asked(study: Study, goal: PowerGoal) -> dict[str, Any] | None:
    """How quiet blocks would have to be for the goal within its GPU-minutes; None where it sets none.

    `block_sd` is the largest standard deviation of their differences that suffices, None where none does: what is assumed of a
    session's offset, `offset_sd`, stays.
    """
    if goal.minutes is None:
        return None
    windows = study.scenario.blocks.windows
    blocks = int(goal.minutes // study.cost.minutes(SampleSize(blocks=1, windows=windows)))
    trial = study.trial(goal.metric, SampleSize(blocks=blocks, windows=windows))

    def exceed(block_sd: float) -> float:
        return find_power(replace(trial, block_sd=block_sd), log1p(goal.effect)) - goal.power

    is_possible = blocks > 0 and exceed(QUIETEST) >= 0
    found = brentq(exceed, QUIETEST, LOUDEST) if is_possible else None
    return {"blocks": blocks, "offset_sd": trial.offset_sd, "block_sd": found}


def check_false_alarms(rows: Sequence[dict[str, Any]], minutes_a_block: float) -> dict[str, Any]:
    """Sum up the false alarms of one design's A/A replays, by the kind of stored noise, since each judges the same replays.

    The honest number of verdicts is that of those that share no block.
    """
    kinds = {row["noise"]: [one for one in rows if one["noise"] == row["noise"]] for row in rows}
    counts = {noise: sum_alarms(found) for noise, found in kinds.items()}
    alone = [row["regression"]["disjoint"] for row in rows if row["regression"]["disjoint"]]
    worst = max(alone, key=lambda rate: (rate["count"], rate["tries"]), default=None)
    needed = find_needed(MAX_FALSE)
    blocks = min((row["blocks_used"] for row in rows), default=0.0)
    is_quiet = bool(counts) and not any(one["alarms"] for one in counts.values())
    is_enough = any(one["replays"] >= MIN_REPLAYS for one in counts.values())
    return {
        "counts": counts,
        "disjoint": worst,
        "status": "met" if is_quiet and is_enough else "NOT met",
        "bound_status": "met" if worst and worst["upper95"] <= MAX_FALSE else "NOT met",
        "needed": needed,
        "needed_hours": needed * blocks * minutes_a_block / 60,
    }


def sum_alarms(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Alarms and replays over rows, with the bound that there would be if replays were independent."""
    replays, alarms = sum(row["replays"] for row in rows), sum(row["regression"]["count"] for row in rows)
    return {"alarms": alarms, "replays": replays, "upper95_if_independent": bound_rate(alarms, replays)}


def find_needed(rate: float) -> int:
    """How many verdicts without an alarm bound the rate of alarms by `rate` with 95 % confidence."""
    tries = 1
    while bound_rate(0, tries) > rate:
        tries += 1
    return tries


def make_study(baseline: Baseline, quiet: Sequence[Recording]) -> Study:
    """The noise of all A/A blocks of a design with what its starts and windows took."""
    return Study(baseline=baseline, scenario=quiet[0].scenario, cost=find_cost(quiet))
