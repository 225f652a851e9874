"""Sessions as OpenMetrics text: what was measured, what the machine did meanwhile, and what the verdict said, each at its time.

Samples carry the time at which a window ended, or a session began, so that `promtool tsdb create-blocks-from openmetrics` puts
them where they belong. Sessions of one scenario and hardware follow each other on the same lines. Those that ran side by side,
as on two GPUs of one host, would tell two numbers of one moment there: they carry their names as a label and have lines of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from perfgate.check import Case
from perfgate.core import Arm, Outcome, Window
from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.results.readings import READINGS
from perfgate.stats.expert_use import ExpertUse

Labels = tuple[tuple[str, str], ...]

_SESSION = ("scenario", "hardware", "session")
_WINDOW = (*_SESSION, "arm", "role")
_METRIC = (*_SESSION, "metric")
_JUDGED = {
    "change": ("perfgate_change_ratio", "candidate over base minus one; above zero is more of the metric"),
    "low": ("perfgate_change_low_ratio", "lower end of the 90 % interval of the change"),
    "high": ("perfgate_change_high_ratio", "upper end of the 90 % interval of the change"),
    "margin_ratio": ("perfgate_margin_ratio", "the smallest loss worth acting on"),
    "smallest_effect": ("perfgate_smallest_effect_ratio", "the smallest loss that this session could have found"),
}
_EXPERTS = {
    "used": ("perfgate_experts_used", "experts of a layer that were chosen at all"),
    "effective": ("perfgate_experts_effective", "effective number of experts of a layer, exp of the entropy of the load"),
    "distinct_a_step": ("perfgate_experts_distinct", "distinct experts of a layer that a decode step touches"),
    "uniform_a_step": ("perfgate_experts_distinct_uniform", "distinct experts that a step of uniform routing would touch"),
    "max_over_mean": ("perfgate_experts_max_over_mean_ratio", "load of the busiest expert of a layer over the mean load"),
    "dependence": ("perfgate_experts_dependence_ratio", "how far a token's experts depend on the token; 0 is not at all"),
    "own_scatter_ratio": ("perfgate_experts_own_scatter_ratio", "share of a token's experts that differ in a second pass"),
    "differs_from_before_ratio": (
        "perfgate_experts_layer_difference_ratio",
        "share of a token's experts that differ from the layer before",
    ),
    "differs_from_base_ratio": (
        "perfgate_experts_arm_difference_ratio",
        "share of a token's experts that differ from the base",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric of the export: its help text and the labels that its samples may carry; `session` only where it is needed."""

    help: str
    labels: tuple[str, ...]


def _list_families() -> dict[str, MetricFamily]:
    windows = {f"perfgate_{name}": f"{row.title}, {row.unit}, of one window" for name, row in METRICS.items()}
    machine = {f"perfgate_machine_{name}": f"{row.meaning} ({row.unit})" for name, row in READINGS.items()}
    judged = dict(_JUDGED.values())
    return {
        **{name: MetricFamily(help=text, labels=_WINDOW) for name, text in {**windows, **machine}.items()},
        **{name: MetricFamily(help=text, labels=_METRIC) for name, text in judged.items()},
        **{name: MetricFamily(help=text, labels=(*_SESSION, "arm", "layer")) for name, text in _EXPERTS.values()},
        "perfgate_outcome": MetricFamily(
            help="1 for the outcome of one metric, 0 for the others", labels=(*_METRIC, "outcome")
        ),
        "perfgate_verdict": MetricFamily(help="1 for the verdict's outcome, 0 for the others", labels=(*_SESSION, "outcome")),
        "perfgate_blocks": MetricFamily(help="blocks that the verdict rests on", labels=_SESSION),
        "perfgate_session_problems": MetricFamily(help="reasons why the session is no evidence", labels=_SESSION),
        "perfgate_session_seconds": MetricFamily(
            help="time from the session's begin to the end of its last window", labels=_SESSION
        ),
    }


FAMILIES: Mapping[str, MetricFamily] = _list_families()
"""Every metric that an export may hold. A dashboard can ask for no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSession:
    """A judged session by the name of its folder, and when it began (seconds since 1970)."""

    name: str
    begun: float
    case: Case

    @property
    def ended(self) -> float:
        """When its last window ended, in seconds since 1970."""
        return self.begun + max((window.ended_s for window in self.case.session.windows), default=0.0)

    @property
    def place(self) -> Labels:
        """What all its samples carry."""
        fingerprints = self.case.session.fingerprints
        facts = next(iter(fingerprints.values())).facts if fingerprints else {}
        return (("scenario", self.case.session.scenario), ("hardware", facts.get("hardware", "unknown")))

    def is_beside(self, other: ExportedSession) -> bool:
        """Whether both measured the same scenario on the same hardware for a while at the same time."""
        return self.place == other.place and self.begun <= other.ended and other.begun <= self.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One number at one time, in seconds since 1970."""

    name: str
    labels: Labels
    value: float
    at: float


def format_openmetrics(sessions: Sequence[ExportedSession]) -> bytes:
    """Write all sessions as one OpenMetrics text. Raise InputError when two that ran side by side have the same name."""
    named = _find_named(sessions)
    told = (sample for one, is_named in zip(sessions, named, strict=True) for sample in _list_samples(one, is_named=is_named))
    samples = sorted(told, key=lambda sample: (sample.name, sample.labels, sample.at))
    registry = CollectorRegistry()
    registry.register(_Collector(samples))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


def _find_named(sessions: Sequence[ExportedSession]) -> list[bool]:
    """Which of the sessions ran beside another one, in their order."""
    named = [False] * len(sessions)
    for (left, one), (right, other) in combinations(enumerate(sessions), 2):
        if not one.is_beside(other):
            continue
        if one.name == other.name:
            raise InputError(
                f"two sessions called {one.name} tell of the same moment; give each session once, or rename a folder"
            )
        named[left] = named[right] = True
    return named


class _Collector:
    """Hands ready samples to the exposition."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families that have samples, in the order of FAMILIES."""
        for name, family in FAMILIES.items():
            found = [sample for sample in self._samples if sample.name == name]
            if found:
                metric = GaugeMetricFamily(name, family.help)
                for sample in found:
                    metric.add_sample(name, dict(sample.labels), sample.value, timestamp=sample.at)
                yield metric


def _list_samples(judged: ExportedSession, *, is_named: bool) -> Iterator[Sample]:
    session, verdict = judged.case.session, judged.case.verdict
    place = (*judged.place, ("session", judged.name)) if is_named else judged.place
    for window in session.windows:
        yield from _list_window(window, place, judged.begun)
    for arm, use in session.expert_use.items():
        yield from _list_use(arm, use, place, judged.begun)
    whole = {
        "perfgate_blocks": float(verdict.blocks),
        "perfgate_session_problems": float(len(verdict.reasons)) if verdict.outcome is Outcome.INVALID else 0.0,
        "perfgate_session_seconds": max((window.ended_s for window in session.windows), default=0.0),
    }
    for name, value in whole.items():
        yield Sample(name=name, labels=place, value=value, at=judged.begun)
    yield from _list_outcomes("perfgate_verdict", place, verdict.outcome, judged.begun)
    for judgement in verdict.judgements:
        labels = (*place, ("metric", judgement.metric))
        for field, (name, _) in _JUDGED.items():
            if (number := getattr(judgement, field)) is not None:
                yield Sample(name=name, labels=labels, value=number, at=judged.begun)
        yield from _list_outcomes("perfgate_outcome", labels, judgement.outcome, judged.begun)


def _list_use(arm: Arm, use: ExpertUse, place: Labels, at: float) -> Iterator[Sample]:
    for layer in use.layers:
        labels = (*place, ("arm", arm.value), ("layer", str(layer.layer)))
        for field, (name, _) in _EXPERTS.items():
            if (number := getattr(layer, field)) is not None:
                yield Sample(name=name, labels=labels, value=float(number), at=at)


def _list_outcomes(name: str, place: Labels, outcome: Outcome, at: float) -> Iterator[Sample]:
    for other in Outcome:
        yield Sample(name=name, labels=(*place, ("outcome", other.value)), value=float(other is outcome), at=at)


def _list_window(window: Window, place: Labels, begun: float) -> Iterator[Sample]:
    labels = (*place, ("arm", window.arm.value), ("role", window.role.value))
    at = round(begun + window.ended_s, 3)
    numbers = {f"perfgate_{name}": value for name, value in window.run.values.items() if name in METRICS}
    numbers |= {f"perfgate_machine_{name}": value for name, value in window.telemetry.items() if name in READINGS}
    for name, value in numbers.items():
        yield Sample(name=name, labels=labels, value=value, at=at)
