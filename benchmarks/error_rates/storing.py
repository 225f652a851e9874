"""What a design's recordings would store: the command that makes its baseline from them, and which slow-downs are missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.error_rates.goals import NEAR
from benchmarks.error_rates.recordings import Recording
from benchmarks.error_rates.replays import Case, Composer, Shelf
from benchmarks.history import PLACE
from perfgate.core import Arm
from perfgate.gate.baselines import find_path
from perfgate.scenario.catalog import list_scenarios, load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.policy import fix_policy

ROOT = Path(__file__).parents[2]
BASELINES = ROOT / "perfgate/baselines"
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
"""The slow-downs that a calibration ought to know the answer to."""


def describe_storing(quiet: Case, shelf: Shelf, injected: Sequence[Case]) -> dict[str, Any] | None:
    """The folders that `perfgate calibrate --from` builds this design's baseline from; None where it does not ship.

    `silenced` are the metrics that gate by the A/A blocks alone, and no more with what answered the slow-downs: these were too
    small for them to be seen.
    """
    fingerprint = shelf.main[0].session.fingerprints[Arm.BASE]
    baseline = find_path(BASELINES, fingerprint, quiet.scenario.name)
    if not is_shipped(quiet.recordings[0]) or not baseline.exists():
        return None
    rig = shelf.main[0].rig
    answered = [case for case in injected if case.label in shelf.responses]
    # What the host of the A/A blocks answered; another host's only where that would silence a gate.
    own = [case for case in answered if case.rigs[0] == rig]
    chosen = own if own and not find_silenced(quiet, keep_responses(shelf, own)) else answered
    lost = find_silenced(quiet, keep_responses(shelf, chosen))
    return {
        "scenario": quiet.scenario.name,
        "baseline": str(baseline.relative_to(ROOT)),
        "quiet": [name_folder(one.entry.folder) for one in shelf.main],
        "injected": [name_folder(one.entry.folder) for case in chosen for one in case.recordings],
        "restored": list_restored([*shelf.main, *(one for case in chosen for one in case.recordings)]),
        "silenced": list(lost),
        "silenced_by": [one.name for case in answered for one in case.recordings] if lost else [],
    }


def keep_responses(shelf: Shelf, cases: Sequence[Case]) -> Shelf:
    """The same blocks with the responses of these cases, wherever they were seen."""
    return Shelf(quiet=shelf.quiet, responses={case.label: shelf.responses[case.label] for case in cases})


def is_shipped(one: Recording) -> bool:
    """Whether the scenario that a recording was measured by ships."""
    return one.scenario.name in list_scenarios() and _design(load_scenario(one.scenario.name)) == one.design[:-1]


def _design(scenario: Scenario) -> tuple[str, str, int, str]:
    return scenario.name, scenario.workload_hash, scenario.blocks.windows, scenario.blocks.resident


def name_folder(folder: Path) -> str:
    """A folder as it is typed in the repository's root."""
    resolved = folder.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else str(resolved)


def list_restored(found: Sequence[Recording]) -> list[list[str]]:
    """The commits, each with a folder, out of which `benchmarks.history` brings what left the working tree."""
    parents = {one.entry.folder.resolve().parent for one in found}
    parts = [parent.relative_to(PLACE).parts for parent in sorted(parents) if parent.is_relative_to(PLACE)]
    return [[commit, "/".join(folder)] for commit, *folder in parts]


def find_silenced(quiet: Case, shelf: Shelf) -> tuple[str, ...]:
    """The metrics that gate by the A/A blocks alone, and no more where the responses are stored beside them."""
    before, after = (list_gated(quiet, one.take()) for one in (shelf.bare, shelf))
    return tuple(name for name in before if name not in after)


def list_gated(case: Case, baseline: Baseline | None) -> tuple[str, ...]:
    """The metrics that may fail a verdict by this stored noise."""
    return fix_policy(Composer(case=case).compose(((0, False),)), case.scenario, baseline).gated


def describe_effects(injected: Sequence[Case]) -> dict[str, Any]:
    """Which of EFFECTS was recorded, and what calls of the spinning kernel cost by themselves, microseconds a step.

    An effect is recorded where a session that slowed every step spent about as much.
    """
    sized = [one for case in injected for one in case.recordings if one.is_direct and one.effect]
    launches = [
        one.spent_us - one.injection.amount * one.scenario.model.layers
        for one in sized
        if one.injection is not None and one.injection.kind == "gpu" and one.spent_us is not None
    ]
    steps_us = [one.spent_us / one.effect for one in sized if one.spent_us is not None and one.effect]
    return {
        "rows": [
            {
                "effect": effect,
                "folders": [one.name for one in sized if NEAR[0] * effect <= (one.effect or 0) <= NEAR[1] * effect],
            }
            for effect in EFFECTS
        ],
        "launch_us": median(launches) if launches else None,
        "step_us": median(steps_us) if steps_us else None,
        "smallest": min((one.effect for one in sized if one.effect), default=None),
    }
