"""Each key with what it means and how much more of it is a loss. What has no limit here is told and never fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfgate.results.profiling.host_counts import SAME_RATIO

MARGIN_RATIO = 0.02
"""The share by which instructions may grow."""

SCATTER = 0.01
"""How far apart the changes of single windows may be, as a share of a base's window: further apart they did not repeat."""

ONCE_IN_TWO = 0.5
"""How many more of an event a step or a request are a loss: one in two steps, so that a line each forty steps is none."""

PARTS = {"scheduler": "scheduler", "detokenizer": "detokenizer", "tokenizer_manager": "tokenizer manager"}
UNITS = {"decode_step": "a decode step", "request": "a request"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """What a key means, and how much more of it is a loss: `margin_ratio` as a share of the base, `more` as a number a unit.

    Below `told_from`, a share, a difference is not worth a line. `scatter`, a share, is how far runs of one arm, or the changes
    of single windows, may be apart. A `timed` key is shown beside the others: no evidence by itself.
    """

    means: str
    margin_ratio: float | None = None
    more: float | None = None
    told_from: float = 0.0
    scatter: float = 0.0
    is_timed: bool = False

    def is_lost(self, base: float, more: float) -> bool:
        """Whether so much more than the base has is a loss."""
        is_beyond = self.margin_ratio is not None and more > base * self.margin_ratio
        return is_beyond or (self.more is not None and more >= self.more)


_METERED = {
    "instructions": CostRule(means="instructions", margin_ratio=MARGIN_RATIO, told_from=SAME_RATIO, scatter=SCATTER),
    "cpu_us": CostRule(means="us of CPU time", is_timed=True),
    "operators": CostRule(means="operators of torch", more=ONCE_IN_TWO),
    "host_reads": CostRule(means="reads and waits that stop for a device", more=ONCE_IN_TWO),
    "copies": CostRule(means="copies of tensors", more=ONCE_IN_TWO),
    "allocations": CostRule(means="tensors made from nothing", more=ONCE_IN_TWO),
    "log_records": CostRule(means="log records", more=ONCE_IN_TWO),
}


def _list_rules() -> Iterator[tuple[str, CostRule]]:
    for part in PARTS:
        for unit in UNITS:
            yield from ((f"{part}.{unit}.{name}", rule) for name, rule in _METERED.items())
    yield from ((f"channels.{unit}.bytes", CostRule(means="bytes between the parts", told_from=0.01)) for unit in UNITS)
    yield "scheduler.round.steps", CostRule(means="steps of a round of requests")


RULES: Mapping[str, CostRule] = dict(_list_rules())
"""By key: the part, the unit that it is counted for, and what was metered."""
