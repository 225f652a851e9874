"""Result folders as recorded sessions, and the baseline that takes them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.core import Arm, Fingerprint, Role, Window
from perfgate.errors import BaselineError, InputError
from perfgate.evidence import Session
from perfgate.gate.baselines import build_baseline, extend_baseline, find_path, load_baseline, pin_anchor, save_baseline
from perfgate.results.readings import FOREIGN_CPU, STOLEN_CPU
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import format_count, format_percent
from perfgate.verdict.recorded import Recorded

BUSY_SHARE = 0.2
"""Noise that was measured while others had more of the CPU than this is stored with a word on it. The sessions behind the
baselines that ship read 1 to 14 %, on a host that many share."""

GROWN = ("sglang", "torch", "driver")
"""The facts that are kept of a session that a baseline grows by: months may lie between two of them, and new drivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedSessions:
    """What a baseline took in: how many sessions, and how many A/A blocks its `file` holds since."""

    file: Path
    action: str
    sessions: int
    aa_blocks: int

    def __str__(self) -> str:
        taken = f"{format_count(self.sessions, 'session')}, {format_count(self.aa_blocks, 'A/A block')} stored"
        return f"{self.file}: {self.action} ({taken})"


def add_sessions(
    folders: Sequence[Path], target: Path, *, accept_slower: str | None = None, commit: str = "", release: str = ""
) -> AddedSessions:
    """Add the sessions of result folders to their baseline below `target`, creating it if there is none.

    `commit` is the base arm's, `release` the name under which the level is pinned. Raise InputError for folders of several
    workloads, and BaselineError where the newest has no base arm or the level became worse without `accept_slower`, a reason.
    """
    scenario, recorded = _read_same(folders, commit)
    fingerprint = _find_fingerprint(recorded)
    path = find_path(target, fingerprint, scenario.name)
    if path.exists():
        baseline = extend_baseline(load_baseline(path), scenario, recorded, accept_slower=accept_slower)
        if release:
            baseline = pin_anchor(baseline, max(one.at for one in recorded), release, baseline.metrics)
    else:
        baseline = build_baseline(scenario, fingerprint, recorded, release=release)
    save_baseline(baseline, path)
    return AddedSessions(file=path, action=baseline.history[-1].action, sessions=len(recorded), aa_blocks=baseline.blocks)


def read_recorded(
    folder: Path, commit: str = "", environment: Sequence[str] = ("sglang", "torch")
) -> tuple[Scenario, Recorded]:
    """Read a result folder as a session that a baseline may take in; `environment` names the facts that are kept of it."""
    scenario, session = load_results(folder)
    facts = session.fingerprints[Arm.BASE].facts if Arm.BASE in session.fingerprints else {}
    told = [f"{key} {facts[key]}" for key in environment if key in facts]
    if (share := measure_busy(session)) > BUSY_SHARE:
        told.append(f"others had {format_percent(share, 0)} of the CPU")
    kept = ", ".join(told)
    at = read_record(folder).begun_utc
    return scenario, Recorded(session=session, name=folder.name, at=at, commit=commit, environment=kept)


def measure_busy(session: Session) -> float:
    """The share of the machine's CPU time that others had while the judged windows ran; 0 where none was read."""
    told = [window for window in session.windows if window.role is Role.MEASURED and FOREIGN_CPU in window.telemetry]
    lost_s = sum((one.telemetry[FOREIGN_CPU] + one.telemetry.get(STOLEN_CPU, 0.0)) * _measure_length(one) for one in told)
    return lost_s / max(sum(map(_measure_length, told)), 1e-9)


def _measure_length(window: Window) -> float:
    return window.ended_s - window.begun_s


def _read_same(folders: Sequence[Path], commit: str) -> tuple[Scenario, list[Recorded]]:
    """Read result folders of one scenario."""
    found = [read_recorded(folder, commit, GROWN) for folder in folders]
    scenarios = {(scenario.name, scenario.workload_hash): scenario for scenario, _ in reversed(found)}
    if len(scenarios) > 1:
        names = " and ".join(f"{name} ({workload})" for name, workload in sorted(scenarios))
        raise InputError(f"the result folders belong to several workloads, {names}; add them one by one")
    return found[0][0], [recorded for _, recorded in found]


def _find_fingerprint(recorded: Sequence[Recorded]) -> Fingerprint:
    """The machine of the newest session's base arm."""
    newest = max(recorded, key=lambda one: one.at)
    if Arm.BASE not in newest.session.fingerprints:
        raise BaselineError(f"{newest.name}: has no base arm, so it says nothing of the level; give sessions of main")
    return newest.session.fingerprints[Arm.BASE]
