"""Which stored noise a session is judged by: the same answer for every command that judges."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfgate.core import Arm, Role
from perfgate.errors import BaselineError, InputError
from perfgate.evidence import Session
from perfgate.gate.baseline_files import find_baseline
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import VERDICT_FILE
from perfgate.storage.state import list_baseline_dirs
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.policy import find_refusals

KEPT = "baselines"
"""The folder in a result folder that keeps the stored noise it was judged by, so that it replays anywhere."""


def choose_baseline(folder: Path, given: tuple[Path, ...], scenario: Scenario, session: Session) -> Baseline | None:
    """Take the baseline from the folders given; else the copy in the result folder; else what this machine or perfgate has.

    A folder that was judged before is judged by the noise that it kept then, or by none if there was none; so is a session that
    measured a stalled window again, for the noise decided what stalled. Raise InputError where no given folder has one, and
    BaselineError where the one that was named or kept cannot be this session's: silence would look like an answer.
    """
    for directory in given:
        if not directory.is_dir():
            raise InputError(f"--baselines {directory}: no such folder; it should hold <hardware>/<scenario>.json")
    if named := match_baseline(given or (folder / KEPT,), scenario, session):
        require_usable(named, scenario, session)
        return named
    if given:
        raise InputError(
            f"--baselines {' '.join(map(str, given))}: holds no baseline of {scenario.name} on this hardware; `perfgate "
            "calibrate` makes one, or leave the option out"
        )
    is_settled = (folder / VERDICT_FILE).exists() or any(window.role is Role.RERUN for window in session.windows)
    return None if is_settled else match_baseline(list_baseline_dirs(), scenario, session)


def require_usable(baseline: Baseline, scenario: Scenario, session: Session) -> None:
    """Raise BaselineError saying with what else the stored noise was measured."""
    fingerprint = session.fingerprints.get(Arm.BASE) or session.fingerprints[Arm.CANDIDATE]
    for refusal in find_refusals(scenario, baseline, fingerprint):
        raise BaselineError(
            f"the baseline of {baseline.scenario} that this session is to be judged by was measured with {refusal}; give "
            "another folder with --baselines, or calibrate anew"
        )


def is_usable(baseline: Baseline, scenario: Scenario, session: Session) -> bool:
    """Whether stored noise says anything of this session."""
    fingerprint = session.fingerprints.get(Arm.BASE) or session.fingerprints[Arm.CANDIDATE]
    return not find_refusals(scenario, baseline, fingerprint)


def match_baseline(folders: Iterable[Path], scenario: Scenario, session: Session) -> Baseline | None:
    """Find the first baseline in `folders` for the hardware that `session` ran on."""
    fingerprint = session.fingerprints.get(Arm.BASE) or session.fingerprints.get(Arm.CANDIDATE)
    if fingerprint is None or "hardware" not in fingerprint.facts:
        return None
    return find_baseline(tuple(folders), scenario, fingerprint)
