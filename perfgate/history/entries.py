"""A measured session as rows for the store."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from perfgate.check import Case
from perfgate.core import Arm, Outcome, Window
from perfgate.errors import EvidenceError, InputError
from perfgate.evidence import Session
from perfgate.history.schema import SCHEMA
from perfgate.history.trends import Provenance
from perfgate.metrics import METRICS
from perfgate.results.records import SESSION_FILE, SessionRecord, read_entries, read_record
from perfgate.storage.journal import read_bytes, read_utc
from perfgate.storage.rounding import describe_judgement
from perfgate.verdict.validity.pairing import group_starts

PARTITION = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
JUDGED_FIELDS = ("metric", "outcome", "gating", "base", "candidate", "change", "low", "high", "margin", "smallest_effect")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Partition:
    """The partition that a session lies in; `month` is that of its begin, for example 2026-11."""

    scenario: str
    hardware: str
    month: str

    def __post_init__(self) -> None:
        """Raise InputError for a name that is no safe part of a path."""
        for field in ("scenario", "hardware"):
            if not PARTITION.fullmatch(getattr(self, field)):
                raise InputError(
                    f"{field} {getattr(self, field)[:80]!r}: names a folder of the store; use a-z, 0-9, . _ - in it"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRows:
    """One session for the store: its row of verdicts and its rows of windows."""

    session: str
    place: Partition
    verdict: Mapping[str, Any]
    windows: tuple[Mapping[str, Any], ...]


def identify_session(folder: Path) -> str:
    """Name a session by what was fixed before its first window and by that window's bytes: neither changes as it grows."""
    entries = read_entries(folder)
    if not entries:
        raise EvidenceError(f"{folder}: no window was measured, so there is nothing to append")
    return digest(read_bytes(folder / SESSION_FILE), entries[0].sha256.encode())


def digest(*parts: bytes) -> str:
    """Sixteen hexadecimal digits that stand for `parts`."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:16]


def enter_session(folder: Path, case: Case, provenance: Provenance) -> SessionRows:
    """Turn a result folder and its verdict into rows. Raise EvidenceError for a session that has not ended."""
    session, record = case.session, read_record(folder)
    if not session.is_complete:
        raise EvidenceError(f"{folder}: the session was cut off or still runs; go on with `perfgate run --resume`, then append")
    key = identify_session(folder)
    begun = read_utc(record.begun_utc)
    shared = {
        "schema": SCHEMA,
        "session": key,
        "origin": "perfgate",
        "kind": _tell_kind(session, record),
        "workload": session.workload_hash,
        "runner": provenance.runner,
    }
    counted = _pick_judged(case)
    commits = _assign_commits(shared["kind"], provenance)
    windows = tuple(
        {**shared, **_describe_window(window, begun), "commit": commits[window.arm], "judged": id(window) in counted}
        for window in session.windows
    )
    place = Partition(scenario=session.scenario, hardware=case.verdict.hardware, month=f"{begun:%Y-%m}")
    source = {"source": folder.resolve().name, "perfgate": record.perfgate}
    row = {**shared, "begun": begun, **source, **_describe_verdict(case), **asdict(provenance)}
    return SessionRows(session=key, place=place, verdict=row, windows=windows)


def _tell_kind(session: Session, record: SessionRecord) -> str:
    if session.is_aa or record.purpose == "calibration":
        return "aa"
    return "ab" if Arm.BASE in session.fingerprints else "alone"


def _assign_commits(kind: Any, provenance: Provenance) -> dict[Arm, str]:
    """Both arms of an A/A session run the one commit."""
    base = provenance.base_commit if kind == "ab" else provenance.commit
    return {Arm.BASE: base, Arm.CANDIDATE: provenance.commit}


def _pick_judged(case: Case) -> frozenset[int]:
    """The windows that count, as the rule picked them; none of a session that is no evidence."""
    if case.verdict.outcome is Outcome.INVALID:
        return frozenset()
    policy = case.policy
    return frozenset(
        id(window)
        for start in group_starts(case.session)
        if len(start.measured) == policy.scenario.blocks.windows
        for window in start.pick_judged(policy.limits.rules)
    )


def _describe_window(window: Window, begun: datetime) -> dict[str, Any]:
    run = window.run
    return {
        "begun": begun + timedelta(seconds=window.begun_s),
        "arm": str(window.arm),
        "block": window.block,
        "start": window.start,
        "position": window.index,
        "role": str(window.role),
        "requested": run.requested,
        "completed": run.completed,
        "duration_s": run.duration_s,
        "problems": len(run.problems),
        **{name: value for name, value in run.values.items() if name in METRICS},
        "others": [],
        "telemetry": dict(window.telemetry),
    }


def _describe_verdict(case: Case) -> dict[str, Any]:
    session, verdict = case.session, case.verdict
    facts = {arm: dict(session.fingerprints[arm].facts) if arm in session.fingerprints else {} for arm in Arm}
    spent_s = session.timing.took_s if session.timing else sum(one.ended_s - one.begun_s for one in session.windows)
    return {
        "rule": str(verdict.policy.get("rule", "")),
        "outcome": str(verdict.outcome),
        "advisory": verdict.uncalibrated,
        "blocks": verdict.blocks,
        "windows": len(session.windows),
        "machine_s": spent_s * session.gpus,
        "reasons": list(verdict.reasons),
        "environment": facts[Arm.BASE] or facts[Arm.CANDIDATE],
        "candidate_environment": facts[Arm.CANDIDATE],
        "judgements": [
            {name: content[name] for name in JUDGED_FIELDS}
            for judgement in verdict.judgements
            for content in [
                {
                    **describe_judgement(judgement),
                    "margin": judgement.margin_ratio,
                    "smallest_effect": judgement.smallest_effect,
                }
            ]
        ],
    }
