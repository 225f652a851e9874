"""Results of other tools as sessions of the store: each run is a session of one window without a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from perfgate.core import Arm, Role, Run
from perfgate.errors import InputError
from perfgate.history.entries import Partition, SessionRows, digest
from perfgate.history.schema import SCHEMA
from perfgate.history.trends import Provenance
from perfgate.metrics import METRICS
from perfgate.results.words import describe_remark
from perfgate.verdict.runs.workloads import ColdRun, show_fact

IMPORT = "import"
# Facts that differ between runs of one workload: a seed draws other prompts of the same lengths.
_DRAWN = ("input_tokens",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a person adds to old numbers that do not carry it themselves.

    `hardware` names where all of them were measured. `scenario`, `at` and `provenance` hold for every run, unless the named
    groups of `pattern` (date, commit, runner, release, scenario) find them in a file's path. `metrics` maps foreign names to
    names of perfgate's own table.
    """

    hardware: str
    scenario: str = ""
    at: datetime | None = None
    pattern: re.Pattern[str] | None = None
    provenance: Provenance = field(default_factory=Provenance)
    metrics: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError for a metric that is none."""
        for foreign, name in self.metrics.items():
            if name not in METRICS:
                raise InputError(f"--metric {foreign}={name}: {name} is no metric; `perfgate history show` prints their names")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignNumber:
    """A number that perfgate has no metric for. `better` is "higher", "lower" or "" for unknown."""

    name: str
    unit: str
    better: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run of the past with its place in time. `cold` says how far it lay below later runs, where its server was cold."""

    origin: str
    source: str
    scenario: str
    hardware: str
    at: datetime
    provenance: Provenance
    workload: Mapping[str, str | int | float]
    values: Mapping[str, float]
    others: Sequence[ForeignNumber] = ()
    run: Run | None = None
    cold: ColdRun | None = None


def enter_past(past: PastRun) -> SessionRows:
    """Turn a run into rows. Its name comes from its content, so that a copy of a file adds nothing."""
    problems = past.run.problems if past.run else ()
    content = {
        "workload": dict(past.workload),
        "values": dict(past.values),
        "others": [[one.name, one.unit, one.value] for one in past.others],
        "place": [past.origin, past.scenario, past.hardware, past.provenance.commit],
    }
    packed = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    shared = {
        "schema": SCHEMA,
        "session": digest(packed),
        "origin": past.origin,
        "kind": IMPORT,
        "workload": hash_workload(past.workload),
        "begun": past.at,
        "runner": past.provenance.runner,
    }
    window = {**shared, **_describe_window(past), "judged": not (past.cold or problems)}
    return SessionRows(
        session=str(shared["session"]),
        place=Partition(scenario=past.scenario, hardware=past.hardware, month=f"{past.at:%Y-%m}"),
        verdict={**shared, **_describe_session(past), "reasons": [describe_remark(problem) for problem in problems]},
        windows=(window,),
    )


def hash_workload(facts: Mapping[str, str | int | float]) -> str:
    """Twelve digits that stand for what was asked of the server."""
    kept = {name: show_fact(fact) for name, fact in facts.items() if name not in _DRAWN}
    return digest(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS))[:12]


def _describe_window(past: PastRun) -> dict[str, Any]:
    run = past.run
    return {
        "commit": past.provenance.commit,
        "arm": str(Arm.BASE),
        "block": 1,
        "start": 1,
        "position": 0,
        "role": str(Role.WARMUP if past.cold else Role.MEASURED),
        "requested": run.requested if run else None,
        "completed": run.completed if run else None,
        "duration_s": run.duration_s if run else None,
        "problems": len(run.problems) if run else 0,
        **{name: value for name, value in past.values.items() if name in METRICS},
        "others": [{"name": one.name, "unit": one.unit, "better": one.better, "value": one.value} for one in past.others],
        "telemetry": {},
    }


def _describe_session(past: PastRun) -> dict[str, Any]:
    return {
        "commit": past.provenance.commit,
        "base_commit": "",
        "release": past.provenance.release,
        "source": past.source[-200:],
        "perfgate": "",
        "rule": "",
        "outcome": "",
        "advisory": True,
        "blocks": 0,
        "windows": 1,
        "machine_s": (past.run.duration_s if past.run else None) or 0.0,
        "environment": {},
        "candidate_environment": {},
        "judgements": [],
    }


def read_moment(text: str) -> datetime:
    """Read a date, or a time with or without its zone (UTC then). Raise InputError for what is neither."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"{text[:80]!r} is no date; give one like 2026-11-21 or 2026-11-21T10:00:00Z") from None
