"""Which job a free slot takes first: the merge queue, then pull requests and commands, then the night. Pure.

GitHub hands jobs to runners in the order in which they came, and only to those that carry all labels that a job asks for. So
a slot that becomes free looks at what waits, and registers under the label of the first kind alone; where nothing waits, under
all three.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perfgate.machine.accelerators import PRIORITIES


def choose_priorities(waiting: Iterable[Collection[str]], labels: Collection[str]) -> tuple[str, ...]:
    """The labels of kinds to register under, given what each waiting job asks for and which other labels the slot carries."""
    mine = [set(asked) for asked in waiting if set(asked) <= {*labels, *PRIORITIES}]
    first = next((kind for kind in PRIORITIES if any(kind in asked for asked in mine)), None)
    return PRIORITIES if first is None else (first,)
