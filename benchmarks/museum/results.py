"""What is kept of an exhibit that was run: the verdicts of the slow candidate and of its twin, and little else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

import perfgate
from benchmarks.museum.exhibits import Placed, Prediction
from perfgate.core import Outcome, Role
from perfgate.errors import InputError
from perfgate.storage.journal import read_json, write_atomically

FILE = "result.json"
SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricAnswer:
    """What was said of one metric. `worse` is the logarithm of a loss; `low` and `high` bound the change."""

    outcome: Outcome
    gating: bool
    worse: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    """One comparison with the base. `windows` are the values that counts, by metric and arm, a list for each block."""

    outcome: Outcome
    reasons: tuple[str, ...]
    uncalibrated: bool
    blocks: int
    minutes: float
    hardware: str
    metrics: Mapping[str, MetricAnswer]
    windows: Mapping[str, Mapping[str, tuple[tuple[float, ...], ...]]]

    @property
    def teller(self) -> str:
        """The gating metric that tells the loss most surely; empty where none is slower, or a counter tells it."""
        slower = {name: one for name, one in self.metrics.items() if one.gating and one.outcome is Outcome.REGRESSION}
        return max(slower, key=lambda name: slower[name].worse or 0.0, default="")

    @property
    def is_counted(self) -> bool:
        """Whether a counter alone tells the loss."""
        return is_told(self) and not self.teller


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhibitResult:
    """What was found, of which exhibit: `digest` is that of its file, `predicted` the commit that held it before the run."""

    digest: str
    predicted: str
    broken: SideResult | None = None
    fixed: SideResult | None = None


def summarise(folder: Path) -> SideResult:
    """Read a session of the gate. Raise EvidenceError where it is broken."""
    case = perfgate.load(folder).case
    verdict, windows = case.verdict, case.session.windows
    names = [one.metric for one in verdict.judgements if one.gating]
    values: dict[str, dict[str, dict[int, list[float]]]] = {name: {"base": {}, "candidate": {}} for name in names}
    for window in windows:
        for name in names:
            if window.role is Role.MEASURED and name in window.run.values:
                values[name][window.arm.value].setdefault(window.block, []).append(round(window.run.values[name], 3))
    return SideResult(
        outcome=verdict.outcome,
        reasons=verdict.reasons[:3],
        uncalibrated=verdict.uncalibrated,
        blocks=verdict.blocks,
        minutes=round(max((window.ended_s for window in windows), default=0.0) / SECONDS, 1),
        hardware=verdict.hardware,
        metrics={
            one.metric: MetricAnswer(outcome=one.outcome, gating=one.gating, worse=one.worse, low=one.low, high=one.high)
            for one in verdict.judgements
        },
        windows={
            name: {arm: tuple(tuple(found[block]) for block in sorted(found)) for arm, found in arms.items()}
            for name, arms in values.items()
        },
    )


def is_told(side: SideResult) -> bool:
    """Whether the gate called the candidate slower."""
    return side.outcome is Outcome.REGRESSION


def describe_match(side: SideResult, expected: Prediction) -> str:
    """How what came compares with what was expected, in a word or two."""
    if side.outcome is not expected.outcome:
        return "not as expected"
    if side.is_counted:
        return "by a counter"
    told = side.metrics.get(expected.metric)
    is_other = is_told(side) and (told is None or told.outcome is not Outcome.REGRESSION)
    return "by another metric" if is_other else "as expected"


def read_result(placed: Placed) -> ExhibitResult | None:
    """What is stored of the exhibit; None where it was not run. Raise InputError for a result of another text of it."""
    path = placed.folder / FILE
    if not path.exists():
        return None
    found = read_json(path, ExhibitResult, "take the file away and run the exhibit again")
    if found.digest != placed.digest:
        raise InputError(f"{path}: digest: is of another text of {placed.name}/exhibit.toml; run it again, or restore the text")
    return found


def write_result(placed: Placed, result: ExhibitResult) -> Path:
    """Store it beside the exhibit, whole or not at all."""
    path = placed.folder / FILE
    write_atomically(path, orjson.dumps(asdict(result), option=orjson.OPT_APPEND_NEWLINE))
    return path
