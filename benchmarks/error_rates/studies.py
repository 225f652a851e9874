"""From recorded folders to every number of the page, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks.error_rates.case_study import find_seen, study_case
from benchmarks.error_rates.goals import (
    MAX_MINUTES,
    POWER_GOALS,
    check_false_alarms,
    check_power,
    describe_noise,
    make_study,
)
from benchmarks.error_rates.recordings import Recording, Skipped
from benchmarks.error_rates.replays import (
    Case,
    Shelf,
    group_cases,
)
from benchmarks.error_rates.storing import describe_effects, describe_storing
from perfgate.errors import CalibrationError
from perfgate.gate.calibrate import RESPONSE_BLOCKS, read_responses
from perfgate.verdict.noise import Response

MOSTLY = 0.5
LIMIT = 5000
"""Most replays of one length that are judged."""


def study_all(found: Sequence[Recording], skipped: Sequence[Skipped], limit: int = LIMIT) -> dict[str, Any]:
    """Everything that the page shows, as plain values; the first recorded design is the one that goals are held against."""
    cases = group_cases(found)
    designs = []
    for design in dict.fromkeys(recording.design for recording in found):
        mine = [case for case in cases if case.recordings[0].design == design]
        designs.append(study_design(mine, limit))
    keep_first_storing(designs)
    return {
        "recordings": [describe_recording(one) | {"beside": count_beside(one, found)} for one in found],
        "skipped": [
            {
                "folder": one.entry.folder.name,
                "kind": one.entry.kind,
                "label": one.entry.label or one.entry.kind,
                "reason": one.reason,
            }
            for one in skipped
        ],
        "designs": designs,
        "cases": [row for design in designs for row in design.pop("cases")],
    }


def keep_first_storing(designs: Sequence[dict[str, Any]]) -> None:
    """Leave only the first design of each baseline file its command: a later one would overwrite the file."""
    taken: set[str] = set()
    for design in designs:
        storing = design["storing"]
        if storing and storing["baseline"] in taken:
            design["storing"] = None
        elif storing:
            taken.add(storing["baseline"])


def describe_recording(one: Recording) -> dict[str, Any]:
    """One folder and what is known of it."""
    facts = one.machine.facts
    return {
        "folder": one.name,
        "kind": one.entry.kind,
        "label": one.label,
        "scenario": one.scenario.name,
        "begun_utc": one.begun_utc,
        "blocks": len(one.blocks),
        "gpu": facts.get("gpu"),
        "cores": one.cores,
        "driver": facts.get("driver"),
        "sglang": facts.get("sglang"),
        "torch": facts.get("torch"),
        "minutes": sum(block.machine_s for block in one.blocks) / 60,
        "effect": one.effect,
        "effect_from": one.effect_from,
        "seen": find_seen(Case(label=one.label, kind=one.entry.kind, recordings=(one,))),
    }


def count_beside(one: Recording, found: Sequence[Recording]) -> int:
    """How many other sessions of the list were measured at the same time on a machine with as many cores."""
    begun, ended = find_span(one)
    spans = [find_span(other) for other in found if other is not one and other.cores == one.cores]
    return sum(other_begun < ended and begun < other_ended for other_begun, other_ended in spans)


def find_span(one: Recording) -> tuple[float, float]:
    """When a session began and ended, in seconds since 1970."""
    begun = datetime.fromisoformat(one.begun_utc).timestamp()
    return begun, begun + (one.session.timing.took_s if one.session.timing else 0.0)


def study_design(cases: Sequence[Case], limit: int) -> dict[str, Any]:
    """Replay all cases of one design with the noise of its A/A blocks, and hold them against the goals."""
    quiet = next((case for case in cases if case.kind == "aa"), None)
    shelf = stock_shelf(quiet, cases) if quiet else None
    shelves = list_shelves(shelf)
    rows = [study_case(case, quiet, shelves, limit) for case in cases]
    scenario = cases[0].scenario
    shown: dict[str, Any] = {
        "scenario": scenario.name,
        "title": scenario.title,
        "workload": scenario.workload_hash,
        "hardware": cases[0].recordings[0].machine.hardware,
        "cases": rows,
    }
    baseline = shelf.take() if shelf else None
    if quiet is None or shelf is None or baseline is None:
        return shown | {"noise": None, "goals": None, "storing": None, "effects": None}
    study = make_study(baseline, shelf.main)
    noise = describe_noise(study, shelf.main)
    equal = next(row for row in rows if row["kind"] == "aa")
    stored = [row for row in equal["rows"] if row["stored"]] or equal["rows"]
    minutes = {row["noise"]: row["minutes"]["median"] for row in stored}
    last = list(minutes.values())[-1] if minutes else None
    injected = [case for case in cases if case.kind == "injected"]
    return shown | {
        "noise": noise,
        "quiet": {"blocks": len(quiet.blocks), "sessions": len(quiet.recordings), "hosts": len(set(quiet.rigs))},
        "storing": describe_storing(quiet, shelf, injected),
        "effects": describe_effects(injected),
        "goals": {
            "false_alarms": check_false_alarms(equal["rows"], noise["block_minutes"]),
            "power": [check_power(goal, study, rows) for goal in POWER_GOALS],
            "minutes": {
                "median": last,
                "by_noise": minutes,
                "open": [name for name, one in stored[-1]["alone"].items() if one["inconclusive"]["rate"] > MOSTLY]
                if stored
                else [],
                "most": MAX_MINUTES,
                "status": "not measured" if last is None else "met" if last <= MAX_MINUTES else "NOT met",
            },
        },
    }


def list_open(row: dict[str, Any]) -> list[str]:
    """The metrics that by themselves leave most replays of a row undecided."""
    return [name for name in row["gated"] if row["alone"][name]["inconclusive"]["rate"] > MOSTLY]


def list_shelves(shelf: Shelf | None) -> list[tuple[str, Shelf | None]]:
    """Kinds of stored noise, in the order of how much they know: none, A/A blocks, and what answered a slow-down besides."""
    if shelf is None:
        return [("none", None)]
    return [("none", None), ("blocks", shelf.bare), *([("responses", shelf)] if shelf.responses else [])]


def stock_shelf(quiet: Case, cases: Sequence[Case]) -> Shelf:
    """The A/A blocks of a design as stored noise, with what its injected cases showed."""
    bare = Shelf(quiet=quiet.recordings)
    return Shelf(
        quiet=quiet.recordings,
        responses={case.label: found for case in cases if (found := find_responses(case, bare))},
        rigs={case.label: case.rigs[0] for case in cases},
    )


def find_responses(case: Case, shelf: Shelf) -> dict[str, Response]:
    """What each metric showed of an injected slow-down, as a calibration would store it.

    Empty where its size is unknown or holds of some steps only, and where a calibration would refuse the folder.
    """
    one = case.recordings[0]
    baseline = shelf.take(rig=one.rig)
    if (
        case.kind != "injected"
        or not one.is_known
        or one.effect is None
        or baseline is None
        or len(one.blocks) < RESPONSE_BLOCKS
    ):
        return {}
    try:
        return read_responses(one.scenario, one.session, baseline, one.effect)
    except CalibrationError:
        return {}
