"""How much of the measured part of a session the server waits for its next window, and where that time goes.

The measured part of a block runs from the beginning of its first window that counts to the end of its last one. Where the
servers of a block were started one after the other, each start has a part of its own. Whatever is not the load itself, as the
load generator timed it, is waiting: its preparation of a window, and what perfgate does between two windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median

from perfgate.core import Role, Window
from perfgate.evidence import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A window's place on the clock, in seconds, and how much of it was load."""

    begun_s: float
    ended_s: float
    load_s: float

    @property
    def preparing_s(self) -> float:
        """What the load generator spends on a window besides the load."""
        return self.ended_s - self.begun_s - self.load_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The waiting of several measured parts: its `share` of their whole length, and seconds of one window.

    The load's seconds are a mean, the others medians.
    """

    windows: int
    share: float
    load_s: float
    preparing_s: float
    between_s: float

    @property
    def waiting_s(self) -> float:
        """How long the server waits for each window, in seconds."""
        return self.preparing_s + self.between_s


def summarize(parts: Iterable[Sequence[Stay]]) -> Idle:
    """Sum up measured parts."""
    kept = [part for part in parts if part]
    stays = [stay for part in kept for stay in part]
    gaps = [after.begun_s - before.ended_s for part in kept for before, after in pairwise(part)]
    span_s = sum(part[-1].ended_s - part[0].begun_s for part in kept)
    return Idle(
        windows=len(stays),
        share=1 - sum(stay.load_s for stay in stays) / span_s,
        load_s=fmean(stay.load_s for stay in stays),
        preparing_s=median(stay.preparing_s for stay in stays),
        between_s=median(gaps) if gaps else 0.0,
    )


def split_parts(session: Session, *, resident: str) -> Iterator[list[Stay]]:
    """The measured parts of a session, in order."""
    counted = [window for window in session.windows if window.role is not Role.WARMUP]

    def name_part(window: Window) -> int:
        return window.block if resident == "both" else window.start

    for _, windows in groupby(counted, key=name_part):
        yield [Stay(begun_s=one.begun_s, ended_s=one.ended_s, load_s=one.run.duration_s or 0.0) for one in windows]
