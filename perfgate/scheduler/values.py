"""What an arm's host parts cost, and how two arms differ, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from statistics import median

from perfgate.resolution.values import FactComparison, Kind


class GapKind(Enum):
    """Why a key cannot be compared."""

    MISSING = auto()
    """An arm has no reading of it."""
    UNSTEADY = auto()
    """Two runs of an arm differ."""
    OTHER_WINDOWS = auto()
    """The arms have other numbers of windows."""
    UNEVEN = auto()
    """The change is a loss in some windows only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What an arm's host parts did, by key (`rules.RULES`): of each run of the same load one number a window, in its order."""

    name: str
    version: str
    runs: Mapping[str, tuple[tuple[float, ...], ...]]

    def find_value(self, key: str) -> float:
        """The median over all windows."""
        return median(value for run in self.runs[key] for value in run)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDifference:
    """One line: a key, its value in the base, and how much more the candidate has. `reason` is why a loss is accepted."""

    key: str
    kind: Kind
    base: float
    more: float
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGap:
    """A key that cannot be compared, and why; `arm` is empty where it lies in both."""

    key: str
    kind: GapKind
    arm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComparison(FactComparison[HostWork, CostDifference, CostGap]):
    """What the host parts of two arms cost under the same load; unverified is what did not repeat."""
