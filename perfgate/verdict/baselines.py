"""Stored noise bands: one reviewed file per machine and scenario, raw values first, everything else derived from them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Fingerprint
from perfgate.errors import BaselineError, InputError
from perfgate.metrics import METRICS
from perfgate.readers.run_checks import LEAST, MOST
from perfgate.results.records import describe_first
from perfgate.scenario.schema import NAME, Scenario
from perfgate.stats.components import Component
from perfgate.storage.journal import write_atomically
from perfgate.storage.rounding import round_floats
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
            if not all(row.injected_ratio > 0 for row in metric.sensitivity):
                raise ValueError(f"metrics.{name}.sensitivity: injected_ratio must be above zero")


def find_path(folder: Path, fingerprint: Fingerprint, scenario: str) -> Path:
    """Where below `folder` the baseline of `scenario` on this hardware lies.

    Both names come from a result folder that a stranger may have written. Raise InputError for one that is no plain name, which
    could lead out of `folder`.
    """
    for what, name in (("hardware", fingerprint.hardware), ("scenario", scenario)):
        if not re.fullmatch(NAME, name):
            raise InputError(f"{what} {name[:80]!r}: no plain name; a baseline is kept under one like nvidia-h20-96gb")
    return folder / fingerprint.hardware / f"{scenario}.json"


def find_baseline(folders: Iterable[Path], scenario: Scenario, fingerprint: Fingerprint) -> Baseline | None:
    """Load the first baseline of this scenario on this hardware; None when no folder holds one.

    Whether what was found fits the session in workload, design and software is decided and reported by the verdict.
    """
    paths = (find_path(folder, fingerprint, scenario.name) for folder in folders)
    return next((load_baseline(path) for path in paths if path.exists()), None)


def load_baseline(path: Path | str) -> Baseline:
    """Read a baseline and derive everything again. Raise BaselineError when it is broken or was edited by hand."""
    path = Path(path)
    try:
        data = orjson.loads(path.read_bytes())
        parsed = TypeAdapter(_BaselineFile).validate_python(data)
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror}); `perfgate baseline add` writes one") from None
    except orjson.JSONDecodeError as error:
        raise BaselineError(f"{path}: not valid JSON ({error}); restore it from version control") from None
    except ValidationError as error:
        raise BaselineError(f"{path}: {describe_first(error)}; restore it from version control") from None
    if parsed.checksum != compute_checksum(data):
        raise BaselineError(
            f"{path}: checksum: its content was edited by hand; restore it, or measure and `perfgate baseline add`"
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


def verify_baseline(path: Path | str) -> Baseline:
    """Load a baseline and compare the numbers that it shows with those that its values give. Raise BaselineError naming one."""
    path = Path(path)
    baseline = load_baseline(path)
    shown = orjson.loads(path.read_bytes())["metrics"]
    for name, metric in describe_baseline(baseline)["metrics"].items():
        for key, value in metric["derived"].items():
            if shown[name]["derived"].get(key) != value:
                raise BaselineError(
                    f"{path}: metrics.{name}.derived.{key}: shows what its values do not give; add to it to rewrite it"
                )
    return baseline


def _read_metric(name: str, metric: _MetricFile, starts: tuple[StoredStart, ...]) -> NoiseModel:
    return NoiseModel(metric=name, starts=starts, values=metric.values, anchor=metric.anchor, sensitivity=metric.sensitivity)


def save_baseline(baseline: Baseline, path: Path | str) -> None:
    """Write `baseline` whole or not at all. Raise BaselineError when the place cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, format_baseline(baseline))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written ({error.strerror}); choose another folder with --to") from None


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
        "components": {level: _describe_component(part) for level, part in noise.components.by_level()},
        "s0": noise.block_variance**0.5,
        "aa_blocks": noise.blocks,
        "window_spread": noise.spread**0.5,
        "quantiles": dict(zip(("p05", "p50", "p95"), noise.quantiles, strict=True)),
        "noise_band_percent": None if noise.band is None else 100 * noise.band,
    }


def _describe_component(component: Component) -> dict[str, float]:
    return {"sd": component.variance**0.5, "df": component.df}


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
