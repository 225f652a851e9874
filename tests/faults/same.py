"""Equal builds: whatever the gate says of them, it may not be REGRESSION.

Recorded A/A blocks of one H200, paired anew: blocks of one session in twos, their arms exchanged in one of them or in both. The
runs share blocks, so they are far fewer independent draws than runs: four blocks, two and two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from tests.faults.checking import check
from tests.faults.fault import Fault, Kind, Where
from tests.faults.recording import Recording

NOT_SLOWER = ("PASS", "IMPROVED", "INCONCLUSIVE")
SESSIONS = {"closed-aa": (1, 2, 3, 4), "saturation-aa": (1, 2), "aa-duet": (1, 2)}


def list_pairings() -> Iterator[Fault]:
    for source, blocks in SESSIONS.items():
        for pair in combinations(blocks, 2):
            for swaps in product((False, True), repeat=2):
                yield build_row(source, pair, tuple(place for place, swap in enumerate(swaps, 1) if swap))


def build_row(source: str, pair: tuple[int, int], swapped: tuple[int, ...]) -> Fault:
    def edit(recording: Recording) -> None:
        for place in swapped:
            recording.swap_arms(place)

    names = "+".join(f"{block}{'x' if place in swapped else ''}" for place, block in enumerate(pair, 1))
    return Fault(
        name=f"A/A {source} {names}",
        kind=Kind.SAME,
        made="recorded equal builds; x: arms exchanged",
        where=Where.RECORDED,
        expected=NOT_SLOWER,
        words="",
        run=check(edit, source=source, blocks=pair),
        is_long=swapped != (),
    )


SAME = tuple(list_pairings())
