"""Sessions as a baseline stores them: one row for each fresh start, from what was admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfgate.core import Arm, Fingerprint, Window
from perfgate.errors import BaselineError
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import round_number
from perfgate.verdict.differences import describe_difference, hardware_differences
from perfgate.verdict.noise import StoredStart
from perfgate.verdict.validity.admission import admit
from perfgate.verdict.validity.pairing import group_starts, read_values
from perfgate.verdict.validity.structure import AdmissionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A measured session with what it does not know of itself: its name, when it began, which commit and environment it ran."""

    session: Session
    name: str
    at: str
    commit: str
    environment: str


Row = tuple[StoredStart, Mapping[str, tuple[float, ...]]]
"""A stored start and its window values by metric."""


def collect_rows(scenario: Scenario, fingerprint: Fingerprint, recorded: Iterable[Recorded], epoch: int) -> list[Row]:
    """Turn sessions into stored starts. Raise BaselineError for one that would not be admitted, or ran on other hardware."""
    rows = [row for one in recorded for row in _collect_session(scenario, fingerprint, one, epoch)]
    if not rows:
        raise BaselineError("no session holds a measured window of the base arm; measure with `perfgate calibrate`")
    return rows


def _collect_session(scenario: Scenario, fingerprint: Fingerprint, one: Recorded, epoch: int) -> list[Row]:
    session = one.session
    limits = AdmissionLimits(scenario=scenario, gated=tuple(scenario.gates))
    if problems := admit(session, limits):
        raise BaselineError(f"{one.name}: no evidence for a baseline: {problems[0]}")
    for arm, found in session.fingerprints.items():
        if differences := hardware_differences(found, fingerprint):
            raise BaselineError(
                f"{one.name}: {arm.value} ran on other hardware than the baseline ({describe_difference(differences[0])})"
            )
    return [
        (
            StoredStart(
                session=one.name,
                block=start.block,
                arm=start.arm,
                epoch=epoch,
                is_aa=session.is_aa,
                at=one.at,
                commit=one.commit,
                environment=one.environment,
            ),
            _read_values(start.pick_judged(limits.rules), scenario),
        )
        for start in group_starts(session)
        if len(start.measured) == scenario.blocks.windows and (session.is_aa or start.arm is Arm.BASE)
    ]


def _read_values(windows: Sequence[Window], scenario: Scenario) -> dict[str, tuple[float, ...]]:
    """Values of each metric that every window carries as a positive number, as they will be written."""
    names = [name for name, metric in METRICS.items() if name in scenario.gates or not (metric.is_by_name or metric.growth_of)]
    carried = [name for name in names if all(window.run.values.get(METRICS[name].of_window, 0.0) > 0 for window in windows)]
    found = {name: tuple(round_number(value) or 0.0 for value in read_values(windows, name)) for name in carried}
    return {name: values for name, values in found.items() if min(values) > 0}
