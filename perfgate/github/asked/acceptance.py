"""Losses that a maintainer accepted: records on the pull request, each bound to a commit, a machine, a metric and a size.

A record is a comment of perfgate's own, so GitHub keeps who wrote the command, when, and every edit. It excuses exactly what it
names: the same loss of the same commit reads `accepted`, a larger one or one of another metric is a regression again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass as plain
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from perfgate.core import Count, Outcome
from perfgate.github.comment.marks import is_own, read_mark, write_mark
from perfgate.github.comment.publisher import Comments
from perfgate.github.comment.sections import Loss
from perfgate.github.handoff.handoff import Label, Sha, Time
from perfgate.report.escape import markdown
from perfgate.report.render import ReportedCase
from perfgate.storage.rounding import format_percent

MARK = "<!-- perfgate:accepted "
_STRICT = ConfigDict(extra="forbid", strict=True, defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Acceptance:
    """What was accepted, by whom, when and why."""

    head_sha: Sha
    hardware: Label
    losses: Annotated[tuple[Loss, ...], Field(min_length=1, max_length=64)]
    by: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
    at: Time
    reason: Annotated[str, Field(min_length=1, max_length=300)]

    def render(self) -> str:
        """The comment that records it: a line for programs, the rest for readers."""
        lines = [f"- {loss.scenario}, {loss.metric}: up to {format_percent(loss.most_ratio)}" for loss in self.losses]
        said = (
            f"**Accepted** for {self.hardware} at commit {self.head_sha[:12]} by {markdown(self.by)}: {markdown(self.reason)}"
        )
        return "\n".join((write_mark(MARK, self), said, "", *lines, "", "Another commit, metric or larger loss fails again."))


def list_losses(cases: Iterable[ReportedCase]) -> tuple[Loss, ...]:
    """What cases lost, as far as it can be accepted: gated metrics of a REGRESSION whose interval has an end, and counters."""
    return tuple(
        Loss(scenario=case.verdict.scenario, metric=one.name, most_ratio=one.most)
        for case in cases
        for one in _find_lost(case)
        if one.most is not None and 0 < one.most < 100
    )


@plain(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A gated metric or a counter that was lost: by how much, and up to how much that may be accepted; None where no end is."""

    name: str
    seen: float
    most: float | None


def _find_lost(case: ReportedCase) -> list[_Lost]:
    verdict = case.verdict
    if verdict.outcome is not Outcome.REGRESSION:
        return []
    metrics = (one for one in verdict.judgements if one.gating and one.outcome is Outcome.REGRESSION)
    return [
        *(_Lost(name=one.metric, seen=abs(one.change or 0.0), most=one.excluded) for one in metrics),
        *(_describe_lost(count) for count in verdict.lost_counts),
    ]


def _describe_lost(count: Count) -> _Lost:
    """Measured again it may differ by what does not fail of itself."""
    seen = abs(count.change or 0.0)
    return _Lost(name=count.counter, seen=seen, most=seen + abs(count.fails_beyond))


def is_accepted(cases: Iterable[ReportedCase], acceptances: Sequence[Acceptance]) -> bool:
    """Whether each loss of each REGRESSION was accepted in its size. A REGRESSION that names nothing lost never is."""
    most = {(loss.scenario, loss.metric): loss.most_ratio for found in acceptances for loss in found.losses}
    lost = [(case.verdict.scenario, _find_lost(case)) for case in cases if case.verdict.outcome is Outcome.REGRESSION]
    return bool(lost) and all(
        found and all(one.seen <= most.get((scenario, one.name), -1.0) for one in found) for scenario, found in lost
    )


def find_acceptances(comments: Comments, bot: str, head_sha: str, hardware: str) -> tuple[Acceptance, ...]:
    """The records of a commit and machine among the pull request's comments, the bot's alone."""
    found = (read_mark(MARK, str(comment["body"]), Acceptance) for comment in comments if is_own(comment, bot, MARK))
    return tuple(one for one in found if one is not None and (one.head_sha, one.hardware) == (head_sha, hardware))
