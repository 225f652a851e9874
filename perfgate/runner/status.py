"""The state of a machine as one JSON object, and as text that Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from perfgate.errors import RunnerError, TelemetryError
from perfgate.machine.lock import describe_holder, find_lock_folder, list_holders
from perfgate.runner.fleet.ledger import LEDGER, read_entries
from perfgate.runner.fleet.limits import select_day
from perfgate.runner.gpus import read_gpus
from perfgate.runner.health import Finding, Reading, Severity, find_severity, judge_health
from perfgate.runner.quarantine import find_quarantine
from perfgate.runner.settings import Runner
from perfgate.runner.setup.seeds import MANIFEST
from perfgate.runner.slot import explain_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of this machine now. `held` are locks and their holders; `slots` tell why each takes no job, None where it
    would; `is_ready` says whether any would, or, where no slots are set up, whether the machine is fit. `gpu_minutes` are those
    of the last 24 hours.
    """

    is_ready: bool
    slots: Mapping[str, str | None]
    held: Mapping[str, str]
    seeds: tuple[str, ...]
    gpu_minutes: float
    gpu_minutes_limit: float | None
    findings: tuple[Finding, ...]
    readings: tuple[Reading, ...]


def read_status(runner: Runner, kernel_log: str) -> Status:
    """Look at everything that decides whether a job would be taken."""
    readings: tuple[Reading, ...] = ()
    try:
        readings = read_gpus()
        findings = judge_health(readings, kernel_log=kernel_log)
    except (RunnerError, TelemetryError) as error:
        findings = (Finding(severity=Severity.BROKEN, where="host", message=str(error)),)
    slots = {name: _find_reason(runner, name, readings, kernel_log) for name in runner.slots}
    is_fit = find_severity(findings) is Severity.OK
    return Status(
        is_ready=None in slots.values() if slots else is_fit,
        slots=slots,
        held={name: describe_holder(holder) for name, holder in list_holders(find_lock_folder()).items()},
        seeds=tuple(sorted(path.parent.name for path in runner.cache.glob(f"*/{MANIFEST}"))),
        gpu_minutes=round(sum(entry.gpu_minutes for entry in select_day(read_entries(runner.state / LEDGER), time.time())), 2),
        gpu_minutes_limit=runner.limits.day,
        findings=findings,
        readings=readings,
    )


def _find_reason(runner: Runner, name: str, readings: Sequence[Reading], kernel_log: str) -> str | None:
    """Why a slot would take no job: closed, without a GPU of its own, with some of several, or with one that is not fit."""
    if closed := find_quarantine(runner, name):
        return f"closed: {closed}"
    own = [reading for reading in readings if reading.uuid in runner.slots[name].gpu]
    if silent := set(runner.slots[name].gpu) - {reading.uuid for reading in own}:
        return f"GPU {min(silent)} does not answer"
    if (why := explain_set(own, len(readings))) is not None:
        return why
    findings = judge_health(own, kernel_log=kernel_log, is_whole=False)
    return f"{findings[0].where}: {findings[0].message}" if findings else None


def format_json(value: Any) -> str:
    """Write dataclasses as indented JSON."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def format_metrics(status: Status) -> str:
    """Write gauges in Prometheus's text format."""
    registry = CollectorRegistry()
    for name, (text, value) in _list_gauges(status).items():
        Gauge(f"perfgate_runner_{name}", text, registry=registry).set(value)
    slots = Gauge("perfgate_runner_slot_ready", "1 if this slot would take a job", ("slot",), registry=registry)
    for name, reason in status.slots.items():
        slots.labels(name).set(reason is None)
    for name, (text, values) in _list_gpu_gauges(status.readings).items():
        metric = Gauge(f"perfgate_runner_gpu_{name}", text, ("uuid", "label"), registry=registry)
        for reading, found in values:
            if found is not None:
                metric.labels(reading.uuid, reading.label).set(found)
    return generate_latest(registry).decode()


def _list_gauges(status: Status) -> dict[str, tuple[str, float]]:
    return {
        "ready": ("1 if the next job would be taken", status.is_ready),
        "severity": ("Exit code of the doctor: 0, 10, 20, 30 or 40", find_severity(status.findings)),
        "slots": ("Slots of this machine", len(status.slots)),
        "gpu_minutes": ("GPU-minutes of the jobs that began within 24 hours", status.gpu_minutes),
        **(
            {}
            if status.gpu_minutes_limit is None
            else {
                "gpu_minutes_limit": ("GPU-minutes that the settings give this machine in 24 hours", status.gpu_minutes_limit)
            }
        ),
        "locks_held": ("Locks that are held now", len(status.held)),
        "seeds": ("Read-only compile caches", len(status.seeds)),
    }


def _list_gpu_gauges(readings: Iterable[Reading]) -> dict[str, tuple[str, list[tuple[Reading, float | None]]]]:
    found = list(readings)
    return {
        "memory_used_ratio": ("Share of memory in use", [(one, one.memory_used_share) for one in found]),
        "temperature_celsius": ("Temperature", [(one, one.celsius) for one in found]),
        "ecc_uncorrected_errors": (
            "Uncorrected ECC errors since the driver was loaded",
            [(one, one.ecc_uncorrected) for one in found],
        ),
    }
