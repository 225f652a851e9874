"""What a history says: series of levels with the points at which they changed, and what measuring cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from perfgate.core import Better, Fingerprint
from perfgate.engines.table import PACKAGES
from perfgate.errors import InputError
from perfgate.verdict.differences import hardware_differences, host_differences, software_differences

RECENT = 5
"""So many of the newest points give the level of a series today: one of them may be off without moving their median."""

UNMARKED_FACTS = (*PACKAGES, "hardware")
"""Facts that are no change of the environment: the engine is what is measured, and other hardware is another series."""


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
COMMIT = re.compile(r"[0-9a-f]{7,40}")
REPOSITORY = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9.-]{0,99}(/[A-Za-z0-9_.-]{1,99}){2}")
NUMBER = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a session does not know of itself. A release is the name of one that later levels are measured against.

    `repository` is its address, below which the commit, the pull request and the run are found.
    """

    commit: str = ""
    base_commit: str = ""
    runner: str = ""
    release: str = ""
    repository: str = ""
    pull_request: str = ""
    run: str = ""

    def __post_init__(self) -> None:
        """Raise InputError for what is no commit, name, address or number."""
        for field, pattern, wanted in (
            ("commit", COMMIT, "7 to 40 hexadecimal digits"),
            ("base_commit", COMMIT, "7 to 40 hexadecimal digits"),
            ("runner", NAME, "letters, digits and . _ -, 64 at most"),
            ("release", NAME, "letters, digits and . _ -, 64 at most"),
            ("repository", REPOSITORY, "its address, such as https://github.com/OWNER/NAME"),
            ("pull_request", NUMBER, "its number"),
            ("run", NUMBER, "the number of the run that measured"),
        ):
            text = getattr(self, field)
            if text and not pattern.fullmatch(text):
                raise InputError(f"--{field.replace('_', '-')} {text[:80]!r}: give {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """One session: the median of its judged windows of the base arm (of both arms where they run one build)."""

    session: str
    at: datetime
    value: float
    commit: str
    runner: str
    release: str
    environment: Mapping[str, str]
    repository: str = ""
    pull_request: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A point from which on the level is another. `ratio` is after over before minus one; `is_worse` is None if unknown."""

    index: int
    at: datetime
    before: float
    after: float
    ratio: float
    p_value: float
    is_worse: bool | None
    commits: tuple[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point at which the environment of its runner is another than before."""

    index: int
    at: datetime
    runner: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far runners differ since the last change: their medians, and the highest over the lowest minus one."""

    medians: Mapping[str, float]
    points: Mapping[str, int]
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Creep:
    """The newest level against the one pinned at a release. `worse` is positive for a loss, `limit` what may add up unseen."""

    anchor: str
    at: datetime
    level: float
    ratio: float
    worse: float | None
    limit: float | None

    @property
    def is_over(self) -> bool:
        """Whether the loss since the anchor is more than it may be."""
        return self.worse is not None and self.limit is not None and self.worse > self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSubject:
    """What a series is of. `better` is "" where it is unknown."""

    scenario: str
    hardware: str
    workload: str
    metric: str
    title: str
    unit: str
    better: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSeries:
    """One metric of one scenario and workload on one kind of hardware, over time."""

    subject: SeriesSubject
    points: tuple[SeriesPoint, ...]
    changes: tuple[LevelChange, ...]
    marks: tuple[Mark, ...]
    spread: Spread | None
    creep: Creep | None

    @property
    def level(self) -> float:
        """Where the series stands today."""
        return median(point.value for point in self.points[-RECENT:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Machine time of one hardware and month. On a GPU machine these are GPU-minutes, of each GPU that a session held."""

    hardware: str
    month: str
    sessions: int
    minutes: float
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A verdict that a person overruled: a false alarm, or a loss that was accepted."""

    session: str
    scenario: str
    hardware: str
    outcome: str
    begun: datetime
    commit: str
    at: datetime
    by: str
    ruling: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """How often the gate failed code, and how often wrongly.

    `regressions` of `judged` sessions of two builds ended in REGRESSION, and `alarms_of_equal_arms` of `equal_arms` sessions
    whose arms were one build: those are false by construction. INVALID sessions are not among either.
    """

    judged: int
    regressions: int
    equal_arms: int
    alarms_of_equal_arms: int
    overrides: tuple[Override, ...]

    @property
    def false_alarms(self) -> int:
        """Verdicts that a person called a false alarm."""
        return sum(override.ruling == "false alarm" for override in self.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The answer to one question to a store; every output is made of it."""

    store: str
    series: tuple[LevelSeries, ...]
    ledger: Ledger
    spending: tuple[Spending, ...]


def find_marks(points: Sequence[SeriesPoint]) -> Iterator[Mark]:
    """Compare each point's environment with that of the point before it on the same runner."""
    seen: dict[str, SeriesPoint] = {}
    for index, point in enumerate(points):
        if before := seen.get(point.runner):
            differences = tell_differences(before.environment, point.environment)
            if differences:
                yield Mark(index=index, at=point.at, runner=point.runner, differences=differences)
        seen[point.runner] = point


def tell_differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Name each fact of machine and software that differs, as "driver 570 -> 580"; nothing where one of the two is unknown."""
    if not before or not after:
        return ()
    old, new = Fingerprint(facts=before), Fingerprint(facts=after)
    differences = (*hardware_differences(old, new), *host_differences(old, new), *software_differences(old, new))
    return tuple(f"{name} {was} -> {is_now}" for name, was, is_now in differences if name not in UNMARKED_FACTS)


def compare_runners(points: Sequence[SeriesPoint]) -> Spread | None:
    """Compare the runners behind `points`; None while fewer than two have two points each."""
    values: dict[str, list[float]] = {}
    for point in points:
        if point.runner:
            values.setdefault(point.runner, []).append(point.value)
    medians = {runner: median(found) for runner, found in sorted(values.items()) if len(found) > 1}
    if len(medians) < 2 or min(medians.values()) <= 0:
        return None
    ratio = max(medians.values()) / min(medians.values()) - 1
    return Spread(medians=medians, points={runner: len(values[runner]) for runner in medians}, ratio=ratio)


def measure_creep(points: Sequence[SeriesPoint], better: str, margin_ratio: float | None) -> Creep | None:
    """Compare today's level with that of the newest release, or else of the first points; None without later points.

    Half the margin may add up unseen: the limit by which stored baselines are held to their anchors.
    """
    released = [point for point in points if point.release]
    name = released[-1].release if released else ""
    anchors = [point for point in released if point.release == name] or list(points[:RECENT])
    later = [point for point in points if point.at > anchors[-1].at][-RECENT:]
    level = median(point.value for point in anchors)
    if not later or level <= 0:
        return None
    now = median(point.value for point in later)
    return Creep(
        anchor=name or "first measured",
        at=anchors[-1].at,
        level=level,
        ratio=now / level - 1,
        worse=measure_loss(level, now, better),
        limit=None if margin_ratio is None else margin_ratio / 2,
    )


def measure_loss(before: float, after: float, better: str) -> float | None:
    """A loss as a positive ratio, a gain as a negative one; None where the direction is unknown or a value is not positive."""
    if min(before, after) <= 0 or not better:
        return None
    return (before / after if better == Better.HIGHER else after / before) - 1
