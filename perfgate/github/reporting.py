"""What a pull request is told of a run: sections of its comment and commit statuses, from the first event to the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfgate.core import Outcome
from perfgate.errors import HandoffError, InputError, StaleError
from perfgate.github.client import GitHub
from perfgate.github.comment.publisher import CommentTarget, publish, set_skip_status, set_status
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.comment.sections import MachineSection, build_section, find_room
from perfgate.github.comment.states import State, find_state
from perfgate.github.events import Action, find_merge_base, find_sha, plan_pull
from perfgate.github.judging import JudgingOptions, judge_handoffs
from perfgate.github.outputs import MAX_SUMMARY_BYTES
from perfgate.github.runs import MachineResult, WorkflowRun, collect, was_nothing_planned
from perfgate.github.settings import Settings
from perfgate.report.comment import build_comment, render_comment
from perfgate.report.escape import markdown
from perfgate.report.render import ReportedCase

NOT_TO_MEASURE = "this run was not to measure anything, so nothing is said"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Where a run is reported, and the effects that takes.

    `summarise` adds markdown to the page of this job's own run, `now` returns the time in UTC as `Time` writes it, and `note`
    takes a line for the log. `link` is the address of the pages, empty where none were kept.
    """

    github: GitHub
    run: WorkflowRun
    target: CommentTarget
    summarise: Callable[[str], None]
    now: Callable[[], str]
    note: Callable[[str], None]
    link: str = ""

    @property
    def run_url(self) -> str:
        """The address of the run that is reported."""
        return f"{self.target.runs_url}/{self.run.run_id}"

    def announce(self, hardware: str, state: State, body: str = "") -> MachineSection:
        """Make a section without a verdict."""
        return build_section(self.run.subject(hardware), state, self.now(), body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """What was said of one machine: its state and, where there is one, the comment's address; or why it was `left` as it is."""

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


def report_run(
    reporter: Reporter, payload: Mapping[str, Any], settings: Settings, options: JudgingOptions
) -> Iterator[MachineReport]:
    """Report a run of the pull request workflow by its `workflow_run` event; yield what was said as soon as it was."""
    run = reporter.run
    if run.pull is None:
        yield from _report_queue(reporter, payload, settings, options)
        return
    action = plan_pull(run.pull).action
    if action is not Action.SKIP:
        yield from publish_all(reporter, _list_sections(reporter, action, payload, settings, options))
    elif payload.get("action") == "completed":
        yield from _skip_machines(reporter, settings.hardware)


def publish_all(reporter: Reporter, sections: Iterable[MachineSection]) -> Iterator[MachineReport]:
    """Publish each section, and yield what became of it before the next; one that is out of date is left."""
    for section in sections:
        try:
            comment = publish(reporter.github, reporter.target, section)
        except StaleError as error:
            yield MachineReport(hardware=section.hardware, left=str(error))
        else:
            yield MachineReport(hardware=section.hardware, state=section.entry.state.value, comment=comment)


def _list_sections(
    reporter: Reporter,
    action: Action,
    payload: Mapping[str, Any],
    settings: Settings,
    options: JudgingOptions,
) -> Iterator[MachineSection]:
    """A run that awaits a maintainer belongs to a fork: nothing that it left is read."""
    if action is Action.AWAIT:
        for hardware in sorted(settings.hardware):
            how = f"    /perfgate run {hardware} {reporter.run.head_sha}"
            yield reporter.announce(hardware, State.AWAITING, f"A maintainer who has read this commit writes\n\n{how}")
    elif payload.get("action") in {"requested", "in_progress"}:
        state = State.PLANNED if payload["action"] == "requested" else State.RUNNING
        yield from (reporter.announce(hardware, state) for hardware in sorted(settings.hardware))
    elif was_nothing_planned(reporter.github, reporter.run):
        # The pull request was labelled since, or this run was about another label: a run of its own answers for that.
        reporter.note(NOT_TO_MEASURE)
    else:
        results = collect(reporter.github, reporter.run, settings.list_jobs())
        yield from judge_machines(reporter, results, options)


def judge_machines(reporter: Reporter, results: Iterable[MachineResult], options: JudgingOptions) -> Iterator[MachineSection]:
    """Judge what each machine left. GitHub is asked once for the commit that all of them compared with."""
    base_sha = _find_base(reporter)
    for result in results:
        reproduction = Reproduction(
            subject=reporter.run.subject(result.hardware),
            base_sha=base_sha,
            link=reporter.link,
            server_url=reporter.target.server_url,
        )
        yield _judge_machine(reporter, reproduction, result, options)


def _judge_machine(
    reporter: Reporter, reproduction: Reproduction, result: MachineResult, options: JudgingOptions
) -> MachineSection:
    """What is missing outweighs what is there, except a regression that was found."""
    remarks = list(result.remarks)
    cases: tuple[ReportedCase, ...] = ()
    try:
        cases = judge_handoffs(result.handoffs, reproduction, options)
    except HandoffError as error:
        remarks.append(str(error))
    state = find_state([case.verdict.outcome for case in cases])
    if remarks and state is not State.REGRESSION:
        state = result.state or State.INVALID
    if state is State.REGRESSION and all(
        case.verdict.is_only_reported(options.uncalibrated) for case in cases if case.verdict.outcome is Outcome.REGRESSION
    ):
        state = State.REPORTED
    lines = "\n".join(f"- {markdown(remark)}" for remark in remarks)
    reporter.summarise(f"{lines}\n\n{render_comment(cases, MAX_SUMMARY_BYTES // 2)}".strip())
    headline = body = ""
    if cases:
        comment = build_comment(cases, find_room(options.machines) - len(lines) - 2)
        # The verdict speaks for the section. Where something is missing too, only a loss may.
        is_verdict = not remarks or state in (State.REGRESSION, State.REPORTED)
        headline, body = (comment.headline, comment.body) if is_verdict else ("", comment.render())
    whole = "\n\n".join((lines, body.strip("\n"))).strip()
    return build_section(reproduction.subject, state, reporter.now(), headline=headline, body=whole)


def _find_base(reporter: Reporter) -> str:
    """The commit that a run compared with; nothing in a merge queue, whose commits stand on each other.

    It was asked for once before the run measured. Where GitHub has no answer now, the comment is not kept back by it.
    """
    pull = reporter.run.pull
    if pull is None:
        return ""
    try:
        return find_merge_base(reporter.github, pull)
    except InputError:
        return find_sha(pull, "base.sha")


def _skip_machines(reporter: Reporter, hardware: Iterable[str]) -> Iterator[MachineReport]:
    """Say of each machine that it was not asked for, so that a branch may require its status of every pull request."""
    for name in sorted(hardware):
        is_set = set_skip_status(reporter.github, reporter.target, name, reporter.run.head_sha, reporter.run_url)
        yield MachineReport(hardware=name, state="not asked for" if is_set else "has an answer already, which stays")


def _report_queue(
    reporter: Reporter, payload: Mapping[str, Any], settings: Settings, options: JudgingOptions
) -> Iterator[MachineReport]:
    """Set the statuses of a commit of the merge queue, which has no pull request to comment on.

    Machines with `smoke` scenarios get their verdicts, and all others that they are not asked for.
    """
    expected = settings.list_jobs(is_smoke=True)
    asked = {job.hardware for job in expected}
    if payload.get("action") == "completed":
        yield from _skip_machines(reporter, set(settings.hardware) - asked)
        results = collect(reporter.github, reporter.run, expected)
        # Pages are made for pull requests alone.
        sections = list(judge_machines(replace(reporter, link=""), results, options))
    else:
        sections = [reporter.announce(name, State.RUNNING) for name in sorted(asked)]
    for section in sections:
        set_status(reporter.github, reporter.target, section, reporter.run_url)
        yield MachineReport(hardware=section.hardware, state=section.entry.state.value)
