"""Equal builds: whatever the gate says of them, it may not be REGRESSION.

Recorded A/A blocks of H200s, paired anew: blocks of one session in twos, and in the first sessions their arms exchanged in one
block or in both. Runs share blocks, so they are fewer independent draws than runs: 20 blocks make nine disjoint pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from tests.faults.checking import check
from tests.faults.fault import Fault, Kind, Where
from tests.faults.recording import Recording

NOT_SLOWER = ("PASS", "IMPROVED", "INCONCLUSIVE")
EXCHANGED = {"closed-aa": (1, 2, 3, 4), "saturation-aa": (1, 2), "aa-duet": (1, 2)}
AS_MEASURED = {"closed-aa-2": (1, 2, 3), "closed-aa-3": (1, 2, 3), "closed-aa-4": (1, 2), "saturation-aa-2": (1, 2, 3, 4)}


def list_pairings() -> Iterator[Fault]:
    for source, blocks in EXCHANGED.items():
        for pair in combinations(blocks, 2):
            for swaps in product((False, True), repeat=2):
                yield build_row(source, pair, tuple(place for place, swap in enumerate(swaps, 1) if swap))
    for source, blocks in AS_MEASURED.items():
        for pair in combinations(blocks, 2):
            yield build_row(source, pair, ())


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
        is_long=source != "closed-aa" or swapped != () or pair not in {(1, 2), (3, 4)},
    )


SAME = tuple(list_pairings())
