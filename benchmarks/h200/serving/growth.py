"""Print how the memory of servers' hosts grew in the recorded sessions of equal arms, and by how much the arms differ in that.

    python -m benchmarks.h200.serving.growth

Everything comes from the windows in `routed/`; nothing is measured. Figures are logarithms of the growth in 10,000 requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.h200.serving.routed_noise import ROUTED, Stored, read_stored
from benchmarks.history import restore_all
from perfgate.metrics import MIN_GROWTH_WINDOWS
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks
from perfgate.verdict.validity.pairing import summarise

METRIC = "server_memory_growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownBlock:
    """The growth of both arms of a block."""

    session: str
    block: int
    base: float
    candidate: float

    @property
    def difference(self) -> float:
        """Candidate minus base."""
        return self.candidate - self.base


def list_blocks(stored: Iterable[Stored]) -> Iterator[GrownBlock]:
    """Each block of equal arms that has windows enough."""
    for one in stored:
        if one.is_equal and one.scenario.blocks.windows >= MIN_GROWTH_WINDOWS:
            for block in read_blocks(one.session, fix_policy(one.session, one.scenario, None)):
                base, candidate = summarise(block.base, METRIC), summarise(block.candidate, METRIC)
                yield GrownBlock(session=one.name, block=block.number, base=base, candidate=candidate)


def main() -> None:
    """Print a line for each block, and what they say together."""
    found = list(list_blocks(read_stored(restore_all(ROUTED))))
    for one in found:
        print(f"{one.session} block {one.block}: {one.base:.4f} {one.candidate:.4f}, difference {one.difference:+.4f}")
    level = median(value for one in found for value in (one.base, one.candidate))
    apart = sorted(abs(one.difference) for one in found)
    near = sum(value < 0.005 for value in apart)
    print(f"{len(found)} blocks: median growth {level:.4f}; arms differ by {median(apart):.4f} in the middle block")
    print(f"{near} blocks differ by less than 0.005, one by {apart[-1]:.4f}")


if __name__ == "__main__":
    main()
