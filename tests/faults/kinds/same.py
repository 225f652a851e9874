"""Equal builds: whatever the gate says of them, it may not be REGRESSION.

Recorded A/A blocks of H200s, paired anew: blocks of one session in twos, and in the first sessions their arms exchanged in one
block or in both. Runs share blocks, so they are fewer independent draws than runs: 20 blocks make ten disjoint pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from tests.faults.checking import HEALTHY, check
from tests.faults.fault import Fault, Kind, Where
from tests.faults.recording import Recording

NOT_SLOWER = ("PASS", "IMPROVED", "INCONCLUSIVE")
MIXED, CLOSED = "mxfp4-mixed-c16-graphs-aa", "mxfp4-closed-c16-aa"
EXCHANGED = {f"{MIXED}-1": (1, 2, 3, 4), f"{CLOSED}-1": (1, 2), f"{CLOSED}-2-m2": (1, 2)}
AS_MEASURED = {f"{MIXED}-{number}": (1, 2, 3, 4) for number in (2, 3, 4, 6, 7)}


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
        is_long=source != HEALTHY or swapped != () or pair not in {(1, 2), (3, 4)},
    )


SAME = tuple(list_pairings())
