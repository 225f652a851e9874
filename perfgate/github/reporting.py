"""What a run reports to its pull request: sections of its comment and commit statuses, from the first event to the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfgate.core import Outcome
from perfgate.errors import GitHubError, HandoffError, InputError
from perfgate.github.asked.acceptance import Acceptance, find_acceptances, is_accepted, list_losses
from perfgate.github.comment.changes import NOT_RESOLVED, render_choices, render_packages, write_headline
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.comment.sections import MachineSection, build_section, find_room, find_words
from perfgate.github.comment.states import State, find_state, has_verdicts_words
from perfgate.github.events import Action, EventPlan, fetch_branch_point, find_merge_base, find_sha, is_fork, plan_pull
from perfgate.github.handoff.choices import ChoicesEntry
from perfgate.github.judging import find_choices, find_packages, judge_handoffs
from perfgate.github.outputs import MAX_SUMMARY_BYTES
from perfgate.github.planning import choose_touched
from perfgate.github.reporter import MachineReport, Reporter, announce, publish
from perfgate.github.runs.collecting import MachineResult, collect, mark_unasked
from perfgate.github.runs.control import cancel_overtaken, is_wanted, retry_died
from perfgate.github.runs.jobs import Jobs, fetch_jobs, was_nothing_planned
from perfgate.github.runs.run import is_dispatched
from perfgate.github.settings import JudgingOptions, MatrixJob, Settings
from perfgate.github.statuses import describe_skip, set_statuses
from perfgate.report.comment import Comment, build_comment, render_comment
from perfgate.report.escape import markdown
from perfgate.report.render import ReportedCase
from perfgate.report.words.length import close_folds, count_words, write_fold
from perfgate.storage.schema import find

REMARKS_SHOWN = 2
NOT_TO_MEASURE = "this run was not to measure anything, so nothing is said"


def report_run(
    reporter: Reporter, payload: Mapping[str, Any], settings: Settings, options: JudgingOptions
) -> Iterator[MachineReport]:
    """Report a run of the pull request workflow by its `workflow_run` event; yield each report as soon as it was made.

    What a run measured is judged by what GitHub says that it did. Whether the label is still there, or the pull request has
    become a draft meanwhile, changes nothing of that.
    """
    run, is_done = reporter.run, payload.get("action") == "completed"
    if is_dispatched(payload):
        if is_done:
            _retry_dispatched(reporter, find(payload, "workflow_run"), settings)
        return
    if run.pull is None:
        yield from _report_queue(reporter, settings, options, is_done=is_done)
        return
    plan = plan_pull(run.pull, settings.base_branches)
    if not is_done:
        _cancel_overtaken(reporter)
        yield from _report_begun(reporter, plan.action, settings.hardware)
    elif is_fork(run.pull):
        # Nothing that its workflow left is read, its jobs' names neither.
        yield from _report_unmeasured(reporter, plan, settings.hardware)
    elif was_nothing_planned(jobs := fetch_jobs(reporter.github, run), is_asked=plan.action is not Action.SKIP):
        yield from _report_unmeasured(reporter, plan, settings.hardware)
    else:
        asked, reporter = _find_asked(reporter, settings)
        results = mark_unasked(collect(reporter.github, run, asked, jobs), settings.list_jobs(), asked)
        again = {result.hardware for result in results if result.died} if _run_again(reporter, results, jobs) else set()
        sections = (_announce_again(reporter, result) for result in results if result.hardware in again)
        left = [result for result in results if result.hardware not in again]
        yield from publish(reporter, (*sections, *judge_machines(reporter, left, options)))
        reporter.keep(left)


def _find_asked(reporter: Reporter, settings: Settings) -> tuple[tuple[MatrixJob, ...], Reporter]:
    """The jobs that the run was to have, and a reporter that knows the base commit where GitHub had to be asked for paths.

    All of the jobs where the paths that it touches cannot be known.
    """
    if settings.minutes is None or reporter.run.pull is None:
        return settings.list_jobs(), reporter
    try:
        point = fetch_branch_point(reporter.github, reporter.run.pull, reporter.run.head_sha)
    except InputError as error:
        reporter.note(f"which paths the change touches is not known, so every scenario is expected: {error}")
        return settings.list_jobs(), replace(reporter, base_sha=find_sha(reporter.run.pull, "base.sha"))
    return choose_touched(settings, point.changed), replace(reporter, base_sha=point.merge_base)


def _cancel_overtaken(reporter: Reporter) -> None:
    """A push ends what measures an older head on request. Where it cannot be ended, its result is not shown all the same."""
    run = reporter.run
    try:
        runs = cancel_overtaken(reporter.github, run.repository, run.pull_request, run.head_sha)
    except GitHubError as error:
        reporter.note(f"what measures an older head was not cancelled: {error}")
        return
    for number in runs:
        reporter.note(f"run {number} measured an older head: cancelled")


def _retry_dispatched(reporter: Reporter, told: Mapping[str, Any], settings: Settings) -> None:
    """A dispatched run has reported itself; left is what no job of its own can do, to run it again."""
    jobs = fetch_jobs(reporter.github, reporter.run)
    failed = {name for name, job in jobs.items() if job.get("conclusion") == "failure"}
    expected = [job for job in settings.list_jobs() if f"bench {job.hardware} {job.scenario}" in failed]
    results = collect(reporter.github, reporter.run, expected, jobs) if expected else ()
    if not any(result.died for result in results):
        return
    if is_wanted(reporter.github, reporter.run.repository, told):
        _run_again(reporter, results, jobs)
    else:
        reporter.note("a runner died; not run again, as its result would not be shown any more")


def _run_again(reporter: Reporter, results: Iterable[MachineResult], jobs: Jobs) -> bool:
    """Run jobs whose runner died before it measured once more, and say so in the log."""
    run, died = reporter.run, [name for result in results for name in result.died]
    is_again = retry_died(reporter.github, run, jobs, died)
    for name in died:
        reporter.note(f"{name}: its runner died before it measured; {'run again' if is_again else 'not run again by itself'}")
    return is_again


def _announce_again(reporter: Reporter, result: MachineResult) -> MachineSection:
    why = "\n".join(f"- {markdown(remark)}" for remark in result.remarks)
    return reporter.announce(result.hardware, State.PLANNED, f"{why}\n\nIt is run again, once, by itself.")


def _report_begun(reporter: Reporter, action: Action, machines: Iterable[str]) -> Iterator[MachineReport]:
    """A measurement that begins takes a success back that says "not asked for". The comment waits for a result."""
    if action is Action.AWAIT:
        yield from _ask_maintainer(reporter, machines)
    elif action is Action.RUN:
        yield from announce(reporter, dict.fromkeys(sorted(machines), State.RUNNING))


def _report_unmeasured(reporter: Reporter, plan: EventPlan, machines: Iterable[str]) -> Iterator[MachineReport]:
    reporter.note(plan.reason)
    if plan.action is Action.AWAIT:
        yield from _ask_maintainer(reporter, machines)
    elif plan.action is Action.REFUSE:
        yield from publish(
            reporter, [reporter.announce(name, State.INVALID, markdown(plan.reason)) for name in sorted(machines)]
        )
    elif plan.action is Action.SKIP and not find(reporter.run.pull or {}, "draft"):
        # A draft cannot be merged, so nothing need be said of one, and a success would stand when it is a draft no more.
        yield from _skip_machines(reporter, machines)
    else:
        reporter.note(NOT_TO_MEASURE)


def _ask_maintainer(reporter: Reporter, machines: Iterable[str]) -> Iterator[MachineReport]:
    """A run that awaits a maintainer belongs to a fork."""
    sections = []
    for hardware in sorted(machines):
        how = f"    /perfgate run {hardware} {reporter.run.head_sha}"
        sections.append(reporter.announce(hardware, State.AWAITING, f"A maintainer who has read this commit writes\n\n{how}"))
    yield from publish(reporter, sections)


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
    remarks = list(result.remarks)
    cases: tuple[ReportedCase, ...] = ()
    try:
        cases = judge_handoffs(result.handoffs, reproduction, options)
    except HandoffError as error:
        remarks.append(str(error))
    choices = find_choices(result.handoffs, result.hardware)
    # A comparison that a comment asked for decides no check, and nothing is resolved for it.
    if choices is None and cases and result.hardware in options.resolved and not reporter.base_sha:
        remarks.append(NOT_RESOLVED)
    lost = [case.verdict for case in cases if case.verdict.outcome is Outcome.REGRESSION]
    state = find_state(
        [case.verdict.outcome for case in cases],
        missing=(result.state or State.INVALID) if remarks else None,
        is_only_reported=all(verdict.is_only_reported(options.uncalibrated) for verdict in lost),
    )
    state = weigh_choices(state, choices)
    is_slower = state is State.REGRESSION
    if is_slower and not remarks and reporter.run.pull is not None and not reporter.base_sha:
        state = State.ACCEPTED if is_accepted(cases, _find_acceptances(reporter, result.hardware), choices) else state
    lines = "\n".join(_list_remarks([f"- {markdown(remark)}" for remark in remarks]))
    reporter.summarise(f"{lines}\n\n{render_comment(cases, MAX_SUMMARY_BYTES // 2)}".strip())
    packages = render_packages(find_packages(result.handoffs), is_slower=bool(lost))
    chosen = "\n\n".join(filter(None, (render_choices(choices) if choices else "", packages)))
    unasked = _tell_unasked(result.unasked)
    headline = body = ""
    if cases:
        is_told = has_verdicts_words(state, is_whole=not remarks)
        head = state.words if not is_told else write_headline(choices, "") if choices else ""
        comment = _write_comment(cases, (head, lines, chosen, unasked), options.machines)
        headline, body = (comment.headline, comment.body) if is_told else ("", comment.render())
        headline = write_headline(choices, headline) if choices and headline else headline
    whole = "\n\n".join(filter(None, (lines, chosen, body.strip("\n"), unasked))).strip()
    section = build_section(reproduction.subject, state, reporter.now(), headline=headline, body=whole)
    losses = list_losses(cases, choices)[:16] if is_slower else ()
    return replace(section, entry=replace(section.entry, losses=losses))


def _list_remarks(lines: Sequence[str]) -> Iterator[str]:
    """What is missing, and what to do about it: the first lines, and the others in a fold."""
    yield from lines[:REMARKS_SHOWN]
    if lines:
        yield "- **What now:** the job's log in this run says why; remove the cause, then measure again."
    if more := lines[REMARKS_SHOWN:]:
        yield from write_fold(f"{len(more)} more that {'is' if len(more) == 1 else 'are'} missing", more)


def _write_comment(cases: Sequence[ReportedCase], others: Sequence[str], machines: int) -> Comment:
    """The verdicts in what a section has left beside `others`, which stand around them."""
    room = find_room(machines) - sum(map(len, others)) - 6
    words = find_words(machines) - count_words(close_folds("\n".join(others)))
    return build_comment(cases, room, words)


def _tell_unasked(scenarios: Sequence[str]) -> str:
    """One line on what the settings have for this machine and the run was not to measure; empty where that is nothing."""
    names = ", ".join(f"`{name}`" for name in scenarios)
    return f"Not measured in this run, and not judged: {names}." if names else ""


def weigh_choices(state: State, choices: ChoicesEntry | None) -> State:
    """The state of a machine with what the change makes the engine choose there: a loss outweighs what was measured, and
    where something could not be verified nothing passes.
    """
    if choices is None or choices.exit_code == 0:
        return state
    if choices.lost:
        return State.REGRESSION
    return State.INCONCLUSIVE if state.commit_status == "success" else state


def _find_acceptances(reporter: Reporter, hardware: str) -> tuple[Acceptance, ...]:
    """Where GitHub does not tell, nothing is accepted, and the verdict stands."""
    try:
        return find_acceptances(reporter.read_comments(), reporter.target.bot, reporter.run.head_sha, hardware)
    except GitHubError as error:
        reporter.note(f"{hardware}: what was accepted cannot be read: {error}")
        return ()


def _find_base(reporter: Reporter) -> str:
    """The commit that a run compared with; nothing in a merge queue, whose commits stand on each other.

    It was asked for once before the run measured. Where GitHub has no answer now, the comment is not kept back by it.
    """
    pull = reporter.run.pull
    if pull is None or reporter.base_sha:
        return reporter.base_sha
    try:
        return find_merge_base(reporter.github, pull)
    except InputError:
        return find_sha(pull, "base.sha")


def _skip_machines(reporter: Reporter, hardware: Iterable[str]) -> Iterator[MachineReport]:
    """Say of each machine that it was not asked for, so that a branch may require its status of every pull request."""
    wanted = {name: describe_skip(reporter.name_context(name), reporter.run_url) for name in sorted(hardware)}
    shown = set_statuses(reporter.github, reporter.run.repository, reporter.run.head_sha, tuple(wanted.values()))
    for name, status in wanted.items():
        yield MachineReport(hardware=name, state="not asked for" if status in shown else "has an answer already, which stays")


def _report_queue(reporter: Reporter, settings: Settings, options: JudgingOptions, *, is_done: bool) -> Iterator[MachineReport]:
    """Set the statuses of a commit of the merge queue, which has no pull request to comment on.

    Machines with `smoke` scenarios get their verdicts, and all others that they are not asked for.
    """
    expected = settings.list_jobs(is_smoke=True)
    asked = {job.hardware for job in expected}
    if not is_done:
        yield from announce(reporter, dict.fromkeys(sorted(asked), State.RUNNING))
        return
    yield from _skip_machines(reporter, set(settings.hardware) - asked)
    results = collect(reporter.github, reporter.run, expected, fetch_jobs(reporter.github, reporter.run))
    # Pages are made for pull requests alone.
    sections = judge_machines(replace(reporter, link=""), results, options)
    yield from announce(reporter, {section.hardware: section.entry.state for section in sections})
