"""How a run reports: commit statuses first, then the one comment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfgate.github.client import GitHub
from perfgate.github.comment.publisher import upsert
from perfgate.github.comment.sections import MachineSection, build_section
from perfgate.github.comment.states import State
from perfgate.github.comment.target import Comments, CommentTarget
from perfgate.github.runs.collecting import MachineResult
from perfgate.github.runs.run import WorkflowRun, fetch_pull
from perfgate.github.statuses import describe_state, name_context, set_statuses

OUTRANKED = "a later run has answered for this commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Where a run is reported, and the effects that takes.

    `summarise` adds markdown to the page of this job's own run, `now` returns the time in UTC as `Time` writes it, `note` takes
    a line for the log, and `keep` what was read, to make pages of. `link` leads to the pages; empty where none are kept.
    `read_comments` asks GitHub for the pull request's comments the first time that it is called, and never again. `base_sha` is
    the commit that a comparison named; empty where the pull request says what it is compared with.
    """

    github: GitHub
    run: WorkflowRun
    target: CommentTarget
    summarise: Callable[[str], None]
    now: Callable[[], str]
    note: Callable[[str], None]
    keep: Callable[[Iterable[MachineResult]], None]
    read_comments: Callable[[], Comments]
    link: str = ""
    base_sha: str = ""

    @property
    def run_url(self) -> str:
        """The address of the attempt that is reported."""
        return f"{self.target.runs_url}/{self.run.run_id}/attempts/{self.run.run_attempt}"

    def name_context(self, hardware: str) -> str:
        """What a machine's status is called for the base branch of this run."""
        return name_context(hardware, self.run.branch)

    def announce(self, hardware: str, state: State, body: str = "") -> MachineSection:
        """Make a section without a verdict."""
        return build_section(self.run.subject(hardware), state, self.now(), body=body)

    def set_statuses(self, states: Mapping[str, State]) -> set[str]:
        """Set each machine's status on the measured commit; return the machines of which it then stands there."""
        wanted = {name: describe_state(self.name_context(name), state, self.run_url) for name, state in states.items()}
        shown = set_statuses(self.github, self.run.repository, self.run.head_sha, tuple(wanted.values()))
        return {name for name, status in wanted.items() if status in shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """What was reported of one machine: its state and, if any, the comment's address; or why it was `left` as it is."""

    hardware: str
    state: str = ""
    comment: str = ""
    left: str = ""

    @property
    def line(self) -> str:
        """The report for the log."""
        said = ": ".join(part for part in (self.state, self.comment) if part)
        return f"{self.hardware}: left as it is: {self.left}" if self.left else f"{self.hardware}: {said}"

    @property
    def facts(self) -> Mapping[str, str]:
        """The same for programs."""
        found = {"hardware": self.hardware, "state": self.state, "comment": self.comment, "left": self.left}
        return {name: value for name, value in found.items() if value}


def announce(reporter: Reporter, states: Mapping[str, State]) -> Iterator[MachineReport]:
    """Set statuses alone."""
    shown = reporter.set_statuses(states)
    for name, state in states.items():
        yield MachineReport(hardware=name, state=state.value) if name in shown else MachineReport(hardware=name, left=OUTRANKED)


def publish(reporter: Reporter, sections: Sequence[MachineSection]) -> Iterator[MachineReport]:
    """Set the statuses, then write the comment; yield what became of each section. What a later run has answered is left.

    The statuses come first: a limit on comments, or one that another workflow forged, must not keep a verdict back. Raise
    StaleError where a push came meanwhile: the statuses are of the commit, and the comment is of the pull request.
    """
    shown = reporter.set_statuses({section.hardware: section.entry.state for section in sections})
    mine = [section for section in sections if section.hardware in shown]
    if mine:
        fetch_pull(reporter.github, reporter.target, reporter.run.head_sha)
    address = upsert(reporter.github, reporter.target, mine, reporter.read_comments()) if mine else ""
    for section in sections:
        name = section.hardware
        if name in shown:
            yield MachineReport(hardware=name, state=section.entry.state.value, comment=address)
        else:
            yield MachineReport(hardware=name, left=OUTRANKED)
