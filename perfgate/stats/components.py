"""Where noise comes from: windows within a start, starts within a session, sessions among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, pi
from statistics import fmean

# Variance of the median of n standard normal values: Sarhan and Greenberg, "Contributions to Order Statistics" (1962).
_MEDIAN_VARIANCE = {1: 1.0, 2: 0.5, 3: 0.4487, 4: 0.2982, 5: 0.2868}

Sessions = Sequence[Sequence[Sequence[float]]]
"""Log values as sessions of starts of windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A variance of log values and the degrees of freedom behind its mean square."""

    variance: float
    df: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The three levels of noise. A level seen only once has no degrees of freedom and a variance of zero."""

    window: Component
    start: Component
    session: Component

    def by_level(self) -> tuple[tuple[str, Component], ...]:
        """Name each level with its component, from the innermost outwards."""
        return ("window", self.window), ("start", self.start), ("session", self.session)

    def predict_variance(self, windows: int) -> float:
        """Variance of the median of `windows` windows of one fresh start in one new session, around the long-run mean."""
        share = _MEDIAN_VARIANCE.get(windows, pi / (2 * windows))
        return self.session.variance + self.start.variance + self.window.variance * share


def split_variance(sessions: Sessions) -> Components:
    """Split the variance of unevenly filled nested data by the method of moments.

    Mean squares of the nested analysis of variance are set equal to what they expect to be, from the innermost level
    outwards; what comes out negative is zero. Searle, Casella and McCulloch, "Variance Components" (1992), the three-way nested
    classification with unbalanced data. Raise ValueError without a single window.
    """
    starts = [start for session in sessions for start in session]
    windows = sum(len(start) for start in starts)
    if not windows or not all(starts) or not all(sessions):
        raise ValueError("variance components need at least one window in every start and one start in every session")
    df_window, df_start, df_session = windows - len(starts), len(starts) - len(sessions), len(sessions) - 1
    window = _divide(fsum(_squares(start) for start in starts), df_window)
    # Expected mean squares count how many windows share one start (n1, n2) and one session (n3).
    within = fsum(sum(len(start) ** 2 for start in session) / _count(session) for session in sessions)
    n1 = _divide(windows - within, df_start)
    n2 = _divide(within - sum(len(start) ** 2 for start in starts) / windows, df_session)
    n3 = _divide(windows - sum(_count(session) ** 2 for session in sessions) / windows, df_session)
    ms_start = _divide(fsum(_between(session) for session in sessions), df_start)
    start = _excess(ms_start - window, n1)
    flat = [[value for one in session for value in one] for session in sessions]
    session = _excess(_divide(_between(flat), df_session) - window - n2 * start, n3)
    return Components(
        window=Component(variance=window, df=df_window),
        start=Component(variance=start, df=df_start),
        session=Component(variance=session, df=df_session),
    )


def find_offset_variance(sessions: Sequence[Sequence[float]]) -> float:
    """Variance of what favours one arm for a whole session, from the block differences of sessions of equal arms.

    The method of moments around the zero that the mean of equal arms is: sum_s b_s m_s^2 / S expects s^2 + tau^2 sum_s b_s / S,
    with m_s the mean of the b_s differences of session s and s^2 their variance within sessions. What comes out negative is
    zero. Without two blocks in any session an offset cannot be told from a block's own noise, and zero is returned.
    """
    blocks = sum(map(len, sessions))
    df = blocks - len(sessions)
    if not sessions or not df:
        return 0.0
    within = fsum(_squares(session) for session in sessions) / df
    between = fsum(len(session) * fmean(session) ** 2 for session in sessions) / len(sessions)
    return max(0.0, between - within) * len(sessions) / blocks


def measure_variance(values: Sequence[float]) -> float:
    """The unbiased variance of two or more values; `statistics.variance` is exact, and too slow for a verdict."""
    return _squares(values) / (len(values) - 1)


def _count(session: Sequence[Sequence[float]]) -> int:
    return sum(len(start) for start in session)


def _divide(total: float, df: float) -> float:
    return total / df if df > 0 else 0.0


def _excess(mean_square: float, count: float) -> float:
    return max(mean_square, 0.0) / count if count > 0 else 0.0


def _squares(values: Sequence[float]) -> float:
    mean = fsum(values) / len(values)
    return fsum((value - mean) ** 2 for value in values)


def _between(groups: Sequence[Sequence[float]]) -> float:
    """Sum of squares of group means around their common mean, each weighed by its size."""
    centre = fsum(value for group in groups for value in group) / sum(len(group) for group in groups)
    return fsum(len(group) * (fsum(group) / len(group) - centre) ** 2 for group in groups)
