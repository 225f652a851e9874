"""Stored noise bands: one reviewed file per machine and scenario, raw values first, everything else derived from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import log
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Fingerprint
from perfgate.errors import BaselineError
from perfgate.metrics import METRICS
from perfgate.readers.run_checks import LEAST, MOST
from perfgate.storage.rounding import round_floats
from perfgate.storage.schema import parse_json
from perfgate.verdict.noise import Anchor, NoiseModel, Response, StoredStart

SCHEMA = 1

# Built when first used: many sessions are judged without a baseline.
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)
# The range of what a window can tell, as its reader has it.
PositiveFloat = Annotated[float, Field(ge=LEAST, le=MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry of a baseline's own history: what was done to it, when, by which sessions, and why."""

    action: Literal["built", "added", "accepted slower", "became faster", "expired", "calibrated", "pinned"]
    at: str
    sessions: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is known of a scenario on one kind of machine before a candidate is looked at.

    `windows` per start and `resident` say how its blocks were measured: noise of another design is another noise.
    """

    scenario: str
    workload_hash: str
    fingerprint: Fingerprint
    windows: int
    resident: str
    metrics: Mapping[str, NoiseModel]
    history: tuple[Change, ...] = ()
    checksum: str = field(default="", compare=False)

    @property
    def starts(self) -> tuple[StoredStart, ...]:
        """The server starts that its values come from; the same for every metric."""
        return next(iter(self.metrics.values())).starts

    @property
    def blocks(self) -> int:
        """How many A/A blocks are stored; behind a metric that older sessions did not tell of there are fewer."""
        return max(noise.blocks for noise in self.metrics.values())


@checked(frozen=True, kw_only=True, config=_STRICT)
class _MetricFile:
    unit: str
    values: tuple[tuple[PositiveFloat, ...], ...]
    anchor: Anchor
    sensitivity: tuple[Response, ...]
    derived: Mapping[str, Any]


@checked(frozen=True, kw_only=True, config=_STRICT)
class _BaselineFile:
    schema: Literal[1]
    scenario: str
    workload_hash: str
    fingerprint: Mapping[str, str]
    windows: Annotated[int, Field(ge=1)]
    resident: str
    starts: Annotated[tuple[StoredStart, ...], Field(min_length=1)]
    metrics: Annotated[Mapping[str, _MetricFile], Field(min_length=1)]
    history: tuple[Change, ...]
    checksum: str

    def __post_init__(self) -> None:
        newest = max(start.epoch for start in self.starts)
        for name, metric in self.metrics.items():
            if name not in METRICS:
                raise ValueError(f"metrics.{name} is no metric")
            if len(metric.values) != len(self.starts):
                raise ValueError(f"metrics.{name}.values has {len(metric.values)} starts, the file {len(self.starts)}")
            if not any(values for start, values in zip(self.starts, metric.values, strict=True) if start.epoch == newest):
                raise ValueError(f"metrics.{name}.values tells no level: the newest epoch, {newest}, has none")
            if abs(metric.anchor.log_mean) > log(MOST):
                raise ValueError(f"metrics.{name}.anchor.log_mean: {metric.anchor.log_mean:g} is no level of a window")
            if not all(row.injected_ratio > 0 for row in metric.sensitivity):
                raise ValueError(f"metrics.{name}.sensitivity: injected_ratio must be above zero")


def parse_baseline(content: bytes, source: str) -> Baseline:
    """Turn a file's content into a baseline, everything derived again. Raise BaselineError when it is broken or was edited."""
    hint = "restore it from version control"
    parsed = parse_json(content, _BaselineFile, source, hint, BaselineError)
    if parsed.checksum != compute_checksum(orjson.loads(content)):
        raise BaselineError(
            f"{source}: checksum: its content was edited by hand; restore it, or measure and `perfgate baseline add`"
        )
    return Baseline(
        scenario=parsed.scenario,
        workload_hash=parsed.workload_hash,
        fingerprint=Fingerprint(facts=dict(parsed.fingerprint)),
        windows=parsed.windows,
        resident=parsed.resident,
        metrics={name: _read_metric(name, metric, parsed.starts) for name, metric in sorted(parsed.metrics.items())},
        history=parsed.history,
        checksum=parsed.checksum,
    )


def _read_metric(name: str, metric: _MetricFile, starts: tuple[StoredStart, ...]) -> NoiseModel:
    return NoiseModel(metric=name, starts=starts, values=metric.values, anchor=metric.anchor, sensitivity=metric.sensitivity)


def format_baseline(baseline: Baseline) -> bytes:
    """Lay a baseline out for review: keys sorted, one metric a block, one start a line."""
    content = describe_baseline(baseline)
    content["checksum"] = compute_checksum(content)
    return (_lay_out(content, 0) + "\n").encode()


def describe_baseline(baseline: Baseline) -> dict[str, Any]:
    """Return the file's content as plain values, without its checksum."""
    content = {
        "schema": SCHEMA,
        "scenario": baseline.scenario,
        "workload_hash": baseline.workload_hash,
        "fingerprint": dict(baseline.fingerprint.facts),
        "windows": baseline.windows,
        "resident": baseline.resident,
        "starts": [asdict(start) for start in baseline.starts],
        "metrics": {name: _describe_metric(noise) for name, noise in baseline.metrics.items()},
        "history": [asdict(change) for change in baseline.history],
    }
    plain: dict[str, Any] = orjson.loads(orjson.dumps(round_floats(content)))
    return plain


def _describe_metric(noise: NoiseModel) -> dict[str, Any]:
    return {
        "unit": METRICS[noise.metric].unit,
        "values": noise.values,
        "anchor": asdict(noise.anchor),
        "sensitivity": [asdict(row) for row in noise.sensitivity],
        "derived": derive(noise),
    }


def derive(noise: NoiseModel) -> dict[str, Any]:
    """What a person reads of a metric's noise. Never read back: it is computed anew from the values."""
    return {
        "log_mean": noise.log_mean,
        "sessions": noise.sessions,
        "components": {level: {"sd": part.variance**0.5, "df": part.df} for level, part in noise.components.by_level()},
        "s0": noise.block_variance**0.5,
        "aa_blocks": noise.blocks,
        "window_spread": noise.spread**0.5,
        "quantiles": dict(zip(("p05", "p50", "p95"), noise.quantiles, strict=True)),
        "noise_band_percent": None if noise.band is None else 100 * noise.band,
    }


def compute_checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 over everything but the checksum itself, whatever the layout."""
    kept = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)).hexdigest()


_OPEN_DEPTH = 4


def _lay_out(value: Any, depth: int) -> str:
    """JSON with sorted keys: outer objects and lists of lists or objects open, one entry a line; the rest stays on one line."""
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and value and depth < _OPEN_DEPTH:
        lines = [f"{pad}{orjson.dumps(key).decode()}: {_lay_out(item, depth + 1)}" for key, item in sorted(value.items())]
        return "{\n" + ",\n".join(lines) + f"\n{end}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return "[\n" + ",\n".join(f"{pad}{_dump(item)}" for item in value) + f"\n{end}]"
    return _dump(value)


def _dump(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
