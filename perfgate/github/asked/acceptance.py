"""Losses that a maintainer accepted: records on the pull request, each bound to a commit, a machine, a metric and a size.

A record is a comment of perfgate's own, so GitHub keeps who wrote the command, when, and every edit. It covers exactly what it
names: the same loss of the same commit reads `accepted`, a larger one or one of another metric is a regression again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass as plain
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from perfgate.core import Count, Outcome
from perfgate.github.comment.marks import is_own, read_mark, write_mark
from perfgate.github.comment.sections import Loss
from perfgate.github.comment.target import Comments
from perfgate.github.handoff.choices import ChoicesEntry
from perfgate.github.handoff.subject import Label, Sha
from perfgate.report.escape import markdown
from perfgate.report.render import ReportedCase
from perfgate.resolution.rules import FLAG
from perfgate.storage.journal import Time
from perfgate.storage.rounding import format_percent
from perfgate.storage.schema import FOREIGN

MARK = "<!-- perfgate:accepted "


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
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


def list_losses(cases: Iterable[ReportedCase], choices: ChoicesEntry | None = None) -> tuple[Loss, ...]:
    """What was lost, as far as it can be accepted: gated metrics of a REGRESSION whose interval has an end, counters, choices.

    A choice goes under its model, and what the host does under its part, as a whole.
    """
    return tuple(
        Loss(scenario=place, metric=one.name, most_ratio=one.most)
        for place, found in _list_lost(cases, choices)
        for one in found
        if one.most is not None and 0 < one.most < 100
    )


@plain(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A gated metric, a counter or a choice that was lost: by how much, and up to how much that may be accepted; None where no
    end is.
    """

    name: str
    seen: float
    most: float | None


def _list_lost(cases: Iterable[ReportedCase], choices: ChoicesEntry | None) -> Iterator[tuple[str, list[_Lost]]]:
    """What each REGRESSION, each model and each part of the host lost."""
    yield from ((case.verdict.scenario, _find_lost(case)) for case in cases if case.verdict.outcome is Outcome.REGRESSION)
    for one in choices.lost if choices else ():
        part, _, counted = one.key.partition(".")
        places = (part,) if one.is_host else dict.fromkeys(model for model, _ in one.cases)
        name = counted.replace(".", "_") if one.is_host else one.key.removeprefix(FLAG)
        yield from ((place, [_Lost(name=name, seen=1.0, most=1.0)]) for place in places)


def _find_lost(case: ReportedCase) -> list[_Lost]:
    verdict = case.verdict
    metrics = (one for one in verdict.judgements if one.gating and one.outcome is Outcome.REGRESSION)
    return [
        *(_Lost(name=one.metric, seen=abs(one.change or 0.0), most=one.excluded) for one in metrics),
        *(_describe_lost(count) for count in verdict.lost_counts),
    ]


def _describe_lost(count: Count) -> _Lost:
    """Measured again it may differ by what does not fail of itself."""
    seen = abs(count.change or 0.0)
    return _Lost(name=count.counter, seen=seen, most=seen + abs(count.fails_beyond))


def is_accepted(cases: Iterable[ReportedCase], acceptances: Sequence[Acceptance], choices: ChoicesEntry | None = None) -> bool:
    """Whether each loss was accepted in its size. A REGRESSION that names nothing lost never is."""
    most = {(loss.scenario, loss.metric): loss.most_ratio for found in acceptances for loss in found.losses}
    lost = list(_list_lost(cases, choices))
    return bool(lost) and all(
        found and all(one.seen <= most.get((place, one.name), -1.0) for one in found) for place, found in lost
    )


def find_acceptances(comments: Comments, bot: str, head_sha: str, hardware: str) -> tuple[Acceptance, ...]:
    """The records of a commit and machine among the pull request's comments, the bot's alone."""
    found = (read_mark(MARK, str(comment["body"]), Acceptance) for comment in comments if is_own(comment, bot, MARK))
    return tuple(one for one in found if one is not None and (one.head_sha, one.hardware) == (head_sha, hardware))
