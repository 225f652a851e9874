"""Judgements as a report lists them: in order, and metrics that are one fact in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p

from perfgate.core import Judgement, Outcome
from perfgate.metrics import METRICS
from perfgate.report.words import wording

ONE_FACT = ("output_tok_per_s", "mean_e2e_ms")
"""In a closed loop the requests in flight are fixed, so throughput is their number over the mean time of one: one fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A line of a report: the judgement that it shows, and those that say the same fact in another metric."""

    judgement: Judgement
    others: tuple[Judgement, ...] = ()

    @property
    def title(self) -> str:
        """The metric's title, with the others and their changes."""
        return wording.title(self.judgement) + self._same

    @property
    def finding(self) -> str:
        """The metric with its change, and the others with theirs."""
        return f"{wording.title(self.judgement)} {wording.percent(self.judgement.change)}{self._same}"

    @property
    def _same(self) -> str:
        more = ", ".join(f"{wording.title(one)} {wording.percent(one.change)}" for one in self.others)
        return f" (= {more})" if more else ""

    @property
    def is_shown(self) -> bool:
        """Whether it has a number, or a reason why a valid session gave it none."""
        judgement = self.judgement
        return judgement.change is not None or (bool(judgement.notes) and judgement.outcome is not Outcome.INVALID)

    @property
    def is_calm(self) -> bool:
        """Whether nothing was lost or is undecided."""
        return self.judgement.outcome in (Outcome.PASS, Outcome.IMPROVED)


def list_families(judgements: Sequence[Judgement], *, is_closed_loop: bool) -> tuple[Family, ...]:
    """Judgements in the order of `sort_judgements`; in a closed loop ONE_FACT share a line, the worse one's."""
    ordered = sort_judgements(judgements)
    same = [one for one in ordered if one.metric in ONE_FACT and one.change is not None]
    if not is_closed_loop or len(same) < len(ONE_FACT) or len({one.gating for one in same}) > 1:
        return tuple(Family(judgement=one) for one in ordered)
    is_alike = len({one.outcome for one in same}) == 1
    first = min(same, key=lambda one: ONE_FACT.index(one.metric)) if is_alike else same[0]
    family = Family(judgement=first, others=tuple(one for one in same if one is not first))
    return tuple(family if one is same[0] else Family(judgement=one) for one in ordered if one not in same[1:])


def sort_judgements(judgements: Sequence[Judgement]) -> tuple[Judgement, ...]:
    """The gating ones worst first, then those that are only shown; what is equal stands in the order of the metrics' table."""
    order = list(METRICS)

    def rank(judgement: Judgement) -> tuple[bool, int, float, int]:
        return (not judgement.gating, judgement.outcome.order, -count_margins(judgement), order.index(judgement.metric))

    return tuple(sorted(judgements, key=rank))


def count_margins(judgement: Judgement) -> float:
    """How many margins were lost; negative for a gain, 0 where nothing is known."""
    return 0.0 if judgement.worse is None else judgement.worse / log1p(judgement.margin_ratio)
