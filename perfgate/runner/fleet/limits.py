"""Who may use a machine: which job comes first, and how many GPU-minutes a user, a repository and all together have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perfgate.machine.accelerators import PRIORITIES
from perfgate.runner.fleet.ledger import LedgerEntry, Note
from perfgate.runner.settings import Limits

DAY_S = 86_400.0
# A job of the merge queue blocks all that wait behind it, so it is counted and never refused.
EXEMPT = ("merge_group",)


def select_day(entries: Iterable[LedgerEntry], now_s: float) -> tuple[LedgerEntry, ...]:
    """The jobs that began within 24 hours. One that begins in the future is of a clock that was wrong then."""
    return tuple(entry for entry in entries if now_s - DAY_S <= entry.began_s <= now_s)


def find_excess(note: Note, entries: Iterable[LedgerEntry], limits: Limits, now_s: float) -> str | None:
    """Why a job is one too many; None when it may begin. A job that is begun is never cut off for its cost."""
    if note.event in EXEMPT:
        return None
    recent = select_day(entries, now_s)
    sums = (
        (f"{note.user}'s", limits.user, [entry for entry in recent if entry.user == note.user]),
        (f"{note.repository}'s", limits.repository, [entry for entry in recent if entry.repository == note.repository]),
        ("this machine's", limits.day, recent),
    )
    for whose, limit, counted in sums:
        used = sum(entry.gpu_minutes for entry in counted)
        if limit is not None and used >= limit:
            return f"{whose} {limit:.0f} GPU-minutes of 24 hours are used up ({used:.0f}); wait, or ask who runs the machine"
    return None


def choose_priorities(waiting: Iterable[Collection[str]], labels: Collection[str]) -> tuple[str, ...]:
    """The labels of kinds to register under, given what each waiting job asks for and which other labels the slot carries.

    The merge queue comes first, then pull requests and commands, then the night. GitHub hands jobs to runners in the order in
    which they came, and only to those that carry all labels that a job asks for. So a slot that becomes free registers under
    the label of the first kind that waits alone; where nothing waits, under all three.
    """
    mine = [set(asked) for asked in waiting if set(asked) <= {*labels, *PRIORITIES}]
    first = next((kind for kind in PRIORITIES if any(kind in asked for asked in mine)), None)
    return PRIORITIES if first is None else (first,)
