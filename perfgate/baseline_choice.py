"""Which stored noise a session is judged by: the same answer for every command that judges."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfgate.core import Arm, Role, Session
from perfgate.errors import InputError
from perfgate.evidence.baselines import Baseline, find_baseline
from perfgate.scenario import Scenario
from perfgate.state import list_baseline_dirs
from perfgate.verdict_file import VERDICT_FILE

KEPT = "baselines"
"""The folder in a result folder that keeps the stored noise it was judged by, so that it replays anywhere."""


def choose_baseline(folder: Path, given: tuple[Path, ...], scenario: Scenario, session: Session) -> Baseline | None:
    """Take the baseline from the folders given; else the copy in the result folder; else what this machine or perfgate has.

    A folder that was judged before is judged by the noise that it kept then, or by none if there was none; so is a session that
    measured a stalled window again, for the noise decided what stalled.
    """
    for directory in given:
        if not directory.is_dir():
            raise InputError(f"--baselines {directory}: no such folder; it should hold <hardware>/<scenario>.json")
    is_settled = (folder / VERDICT_FILE).exists() or any(window.role is Role.RERUN for window in session.windows)
    elsewhere = () if is_settled else list_baseline_dirs()
    return match_baseline(given or (folder / KEPT, *elsewhere), scenario, session)


def match_baseline(folders: Iterable[Path], scenario: Scenario, session: Session) -> Baseline | None:
    """Find the first baseline in `folders` for the hardware that `session` ran on."""
    fingerprint = session.fingerprints.get(Arm.BASE) or session.fingerprints.get(Arm.CANDIDATE)
    if fingerprint is None or "hardware" not in fingerprint.facts:
        return None
    return find_baseline(tuple(folders), scenario, fingerprint)
