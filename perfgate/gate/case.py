"""From a result folder to a verdict: load it, choose the stored noise that it is judged by, judge. Every command asks here.

The noise, by one rule: folders that were named come first. Else the copy in the result folder counts, which was fixed before
the first window. Else what this machine or perfgate has, but for a session that was judged without any or measured by none.
Which windows were to be measured again is always asked of that copy, if there is one: it decided when they were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from perfgate.check import Case, judge, needs_more
from perfgate.core import Arm, Fingerprint, Role
from perfgate.errors import BaselineError, InputError
from perfgate.evidence import Session
from perfgate.gate.baselines import find_baseline, find_path, save_baseline
from perfgate.results.results import load_results
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import VERDICT_FILE
from perfgate.storage.state import list_baseline_dirs
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.policy import find_refusals, fix_policy

KEPT = "baselines"
"""The folder in a result folder that keeps the stored noise it was judged by, so that it replays anywhere."""


def load_case(
    folder: Path,
    given: tuple[Path, ...] = (),
    *,
    scenarios_in_pr: int | None = None,
    has_base: bool | None = None,
    is_fixed: bool = False,
) -> Case:
    """Load the session in `folder`, choose its noise and judge it.

    `given` are folders of stored noise that the user named. `scenarios_in_pr` and `has_base` replace what the folder says of
    itself. `is_fixed` says that `fix_noise` was asked before the first window, so that only the folder's own copy counts. Raise
    EvidenceError for a folder that is broken, InputError where no folder in `given` has a baseline, and BaselineError where the
    one that was named or kept cannot be this session's: a verdict without it would look like an answer.
    """
    scenario, session = load_results(folder)
    baseline = _choose_baseline(folder, given, scenario, session, is_fixed=is_fixed)
    # Of several folders that were named, none is known to be the one.
    place = folder / KEPT if not given else given[0]
    session = replace(
        session,
        scenarios_in_pr=session.scenarios_in_pr if scenarios_in_pr is None else scenarios_in_pr,
        has_base=session.has_base if has_base is None else has_base,
        noise=str(place) if place.is_dir() and len(given) < 2 else "",
        window_noise=_read_window_noise(folder, scenario, session) if given else None,
    )
    return Case(session=session, scenario=scenario, baseline=baseline, verdict=judge(session, scenario, baseline))


def fix_noise(folder: Path, given: tuple[Path, ...]) -> Mapping[str, float]:
    """Keep in a session's folder the stored noise that it will be judged by, and return the deviations of a window in it.

    From here on the copy decides, if there is one: a baseline that grows while the session runs, or while it rests, changes
    nothing, and what the session measures again is what the verdict finds stalled.
    """
    scenario, session = load_results(folder)
    elsewhere = () if session.windows or session.superseded else list_baseline_dirs(given)
    baseline = _match_baseline((folder / KEPT, *elsewhere), scenario, session)
    _keep(folder, baseline, scenario, session)
    return fix_policy(session, scenario, baseline).window_noise


def _read_window_noise(folder: Path, scenario: Scenario, session: Session) -> Mapping[str, float] | None:
    """The deviations of a window by the folder's own copy of stored noise, if it has one: without it they are not known."""
    kept = _match_baseline((folder / KEPT,), scenario, session)
    if kept is None or _list_refusals(kept, scenario, session):
        return None
    return fix_policy(session, scenario, kept).window_noise


def keep_noise(folder: Path, case: Case) -> None:
    """Keep in a finished session's folder the stored noise that `case` was judged by, for readers who have none."""
    _keep(folder, case.baseline, case.scenario, case.session)


def _keep(folder: Path, baseline: Baseline | None, scenario: Scenario, session: Session) -> None:
    if baseline is not None and not _list_refusals(baseline, scenario, session):
        save_baseline(baseline, find_path(folder / KEPT, baseline.fingerprint, scenario.name))


def is_decided(folder: Path) -> bool:
    """Whether the session in `folder`, as far as it got, needs no further block."""
    case = load_case(folder, is_fixed=True)
    return not needs_more(case.session, case.scenario, case.baseline)


def _choose_baseline(
    folder: Path, given: tuple[Path, ...], scenario: Scenario, session: Session, *, is_fixed: bool
) -> Baseline | None:
    for directory in given:
        if not directory.is_dir():
            raise InputError(f"--baselines {directory}: no such folder; it should hold <hardware>/<scenario>.json")
    if named := _match_baseline(given or (folder / KEPT,), scenario, session):
        for refusal in _list_refusals(named, scenario, session):
            raise BaselineError(
                f"the baseline of {named.scenario} that this session is to be judged by was measured with {refusal}; give "
                "another folder with --baselines, or calibrate anew"
            )
        return named
    if given:
        raise InputError(
            f"--baselines {' '.join(map(str, given))}: holds no baseline of {scenario.name} on this hardware; `perfgate "
            "calibrate` makes one, or leave the option out"
        )
    # The noise decided which window stalled, so one that was measured again was measured by the noise of then.
    was_judged = (folder / VERDICT_FILE).exists() or any(window.role is Role.RERUN for window in session.windows)
    return None if is_fixed or was_judged else _match_baseline(list_baseline_dirs(), scenario, session)


def _match_baseline(folders: Iterable[Path], scenario: Scenario, session: Session) -> Baseline | None:
    """Find the first baseline in `folders` for the hardware that `session` ran on."""
    fingerprint = _find_fingerprint(session)
    if fingerprint is None or "hardware" not in fingerprint.facts:
        return None
    return find_baseline(tuple(folders), scenario, fingerprint)


def _list_refusals(baseline: Baseline, scenario: Scenario, session: Session) -> tuple[str, ...]:
    """With what else the stored noise was measured, so that it says nothing of this session."""
    fingerprint = _find_fingerprint(session)
    return () if fingerprint is None else find_refusals(scenario, baseline, fingerprint)


def _find_fingerprint(session: Session) -> Fingerprint | None:
    return session.fingerprints.get(Arm.BASE) or session.fingerprints.get(Arm.CANDIDATE)
