"""From recorded folders to every number of the page, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import mean
from typing import Any

from benchmarks.error_rates.custom import judge_all
from benchmarks.error_rates.goals import (
    MAX_MINUTES,
    POWER_GOALS,
    check_false_alarms,
    check_power,
    describe_noise,
    make_study,
)
from benchmarks.error_rates.rates import SEED, tally
from benchmarks.error_rates.recordings import Recording, Skipped
from benchmarks.error_rates.replays import (
    Case,
    Composer,
    Shelf,
    count_replays,
    find_stored,
    group_cases,
    list_replays,
    replay,
    walk,
)
from perfgate.core import Outcome
from perfgate.errors import CalibrationError
from perfgate.evidence.noise import Response
from perfgate.policy import fix_policy
from perfgate.series import read_series
from perfgate.serving.calibration import read_responses
from perfgate.stats.components import measure_variance
from perfgate.stats.student import find_quantile

LIMIT = 5000
"""Most replays of one length that are judged."""

RIVAL_BLOCKS = 2
"""Blocks of the comparison with other rules: what the verdict mostly needs, so that all see as much."""


def study_all(found: Sequence[Recording], skipped: Sequence[Skipped], limit: int = LIMIT) -> dict[str, Any]:
    """Everything that the page shows, as plain values; the first recorded design is the one that goals are held against."""
    cases = group_cases(found)
    designs = []
    for design in dict.fromkeys(recording.design for recording in found):
        mine = [case for case in cases if case.recordings[0].design == design]
        designs.append(study_design(mine, limit))
    return {
        "recordings": [describe_recording(one) for one in found],
        "skipped": [
            {"folder": one.entry.folder.name, "kind": one.entry.kind, "label": one.entry.label, "reason": one.reason}
            for one in skipped
        ],
        "designs": designs,
        "cases": [row for design in designs for row in design.pop("cases")],
    }


def describe_recording(one: Recording) -> dict[str, Any]:
    """One folder and what is known of it."""
    facts = next(iter(one.session.fingerprints.values())).facts
    return {
        "folder": one.name,
        "kind": one.entry.kind,
        "label": one.entry.label,
        "scenario": one.scenario.name,
        "begun_utc": one.begun_utc,
        "blocks": len(one.blocks),
        "gpu": facts.get("gpu"),
        "driver": facts.get("driver"),
        "sglang": facts.get("sglang"),
        "torch": facts.get("torch"),
        "minutes": sum(block.took_s for block in one.blocks) / 60,
        "nominal": one.entry.nominal,
        "effect": one.effect,
        "effect_from": one.effect_from,
    }


def study_design(cases: Sequence[Case], limit: int) -> dict[str, Any]:
    """Replay all cases of one design with the noise of its A/A blocks, and hold them against the goals."""
    quiet = next((case for case in cases if case.kind == "aa"), None)
    shelf = stock_shelf(quiet, cases) if quiet else None
    rows = [study_case(case, quiet, shelf, limit) for case in cases]
    scenario = cases[0].scenario
    shown: dict[str, Any] = {
        "scenario": scenario.name,
        "title": scenario.title,
        "workload": scenario.workload_hash,
        "cases": rows,
    }
    baseline = shelf.take() if shelf else None
    if quiet is None or baseline is None:
        return shown | {"noise": None, "goals": None}
    study = make_study(baseline, quiet.recordings)
    noise = describe_noise(study, quiet.recordings)
    equal = next(row for row in rows if row["kind"] == "aa")
    stored = [row for row in equal["rows"] if row["stored"]] or equal["rows"]
    minutes = stored[-1]["minutes"]["median"] if stored else None
    return shown | {
        "noise": noise,
        "goals": {
            "false_alarms": check_false_alarms(stored, noise["block_minutes"]),
            "false_alarms_without_stored": check_false_alarms(
                [row for row in equal["rows"] if not row["stored"]], noise["block_minutes"]
            ),
            "power": [check_power(goal, study, rows) for goal in POWER_GOALS],
            "minutes": {
                "median": minutes,
                "most": MAX_MINUTES,
                "status": "not measured" if minutes is None else "met" if minutes <= MAX_MINUTES else "NOT met",
            },
        },
    }


def stock_shelf(quiet: Case, cases: Sequence[Case]) -> Shelf:
    """The A/A blocks of a design as stored noise, with what its injected cases showed."""
    bare = Shelf(quiet=quiet.recordings)
    return Shelf(
        quiet=quiet.recordings,
        responses={case.label: found for case in cases if (found := find_responses(case, bare))},
    )


def find_responses(case: Case, shelf: Shelf) -> dict[str, Response]:
    """What each metric showed of an injected slow-down, as a calibration would store it.

    Empty where its size is unknown, and where a calibration would refuse the folder.
    """
    one, baseline = case.recordings[0], shelf.take()
    if case.kind != "injected" or one.effect is None or baseline is None:
        return {}
    try:
        return read_responses(one.scenario, one.entry.folder, baseline, one.effect)
    except CalibrationError:
        return {}


def study_case(case: Case, quiet: Case | None, shelf: Shelf | None, limit: int) -> dict[str, Any]:
    """All replays of one case, at each length that the blocks allow, with stored noise and without."""
    composer, total = Composer(case=case), len(case.blocks)
    lengths = [look for look in case.scenario.blocks.looks if look <= total]
    kinds = (None, shelf) if shelf else (None,)
    rows = [row for stored in kinds for length in lengths if (row := study_length(composer, length, stored, limit))]
    effects = [one.effect for one in case.recordings if one.effect is not None]
    return {
        "scenario": case.scenario.name,
        "workload": case.scenario.workload_hash,
        "kind": case.kind,
        "label": case.label,
        "folders": [one.name for one in case.recordings],
        "blocks": total,
        "nominal": case.recordings[0].entry.nominal,
        "effect": mean(effects) if effects else None,
        "effect_from": case.recordings[0].effect_from,
        "direct": case.recordings[0].is_direct,
        "differences": describe_differences(case),
        "live": [describe_live(case, one, shelf) for one in case.recordings],
        "rows": rows,
        "replays": sum(row["replays"] for row in rows),
        "rivals": study_rivals(case, quiet, shelf, limit),
    }


def study_length(composer: Composer, length: int, shelf: Shelf | None, limit: int) -> dict[str, Any] | None:
    """The replays of one length by one kind of stored noise; None where no block is left to store."""
    case = composer.case
    total, symmetric = len(case.blocks), case.is_symmetric
    picks = list_replays(total, length, is_symmetric=symmetric, limit=limit, seed=SEED)
    if shelf and find_stored(shelf, case, picks[0]) is None:
        return None
    found = [replay(composer, pick, find_stored(shelf, case, pick)) for pick in picks]
    baseline = find_stored(shelf, case, picks[0])
    return {
        "stored": bool(shelf),
        "stored_blocks": baseline.blocks if baseline else 0,
        "blocks": length,
        "distinct": count_replays(total, length, is_symmetric=symmetric),
        **tally(found, list(walk(composer, length, shelf)), total),
    }


def describe_differences(case: Case) -> dict[str, Any]:
    """Mean and spread over all blocks of what each metric lost, as log badness, with a two-sided 90 % t interval."""
    session = Composer(case=case).compose(tuple((index, False) for index in range(len(case.blocks))))
    policy = fix_policy(session, case.scenario, None, 1)
    shown = {}
    for reading in read_series(session, policy):
        values = reading.series.differences
        sd = sqrt(measure_variance(values)) if len(values) > 1 else None
        reach = find_quantile(0.95, len(values) - 1) * sd / sqrt(len(values)) if sd is not None else None
        shown[reading.metric] = {"mean": mean(values), "sd": sd, "reach": reach, "blocks": len(values)}
    return shown


def describe_live(case: Case, one: Recording, shelf: Shelf | None) -> dict[str, Any]:
    """The verdict of a folder as it stands, by the noise of the other blocks where there are some."""
    alone = Composer(case=Case(label=case.label, kind=case.kind, recordings=(one,)))
    pick = tuple((index, False) for index in range(len(one.blocks)))
    without = frozenset(block.key for block in one.blocks) if case.kind == "aa" else frozenset()
    baseline = shelf.take(without, "" if case.kind == "aa" else case.label) if shelf else None
    found = replay(alone, pick, baseline)
    outcome = found.outcome
    return {
        "folder": one.name,
        "outcome": outcome.value,
        "blocks": found.blocks if outcome is not Outcome.INVALID else 0,
        "stored_blocks": baseline.blocks if baseline else 0,
        "minutes": found.took_s / 60,
    }


def study_rivals(case: Case, quiet: Case | None, shelf: Shelf | None, limit: int) -> dict[str, Any] | None:
    """The other rules on the same windows, over the metrics that gate, at a length at which blocks are left as history."""
    looks = [look for look in case.scenario.blocks.looks if look <= min(len(case.blocks), RIVAL_BLOCKS)]
    if not looks:
        return None
    session = Composer(case=case).compose(((0, False),))
    gated = fix_policy(session, case.scenario, shelf.take() if shelf else None, 1).gated
    picks = list_replays(len(case.blocks), looks[-1], is_symmetric=case.is_symmetric, limit=limit, seed=SEED)
    return {"blocks": looks[-1], "metrics": list(gated), "rows": judge_all(case, quiet, picks, gated)}
