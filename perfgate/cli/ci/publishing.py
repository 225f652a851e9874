"""`perfgate github publish` and `report`: the two steps that hold a token which may write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from perfgate.cli.ci.judging import EVENT, SETTINGS, Court, Judged, add_court_options, build_court, judge_handoffs
from perfgate.cli.ci.pages import add_page_options, write_pages
from perfgate.cli.output import add_format_option, print_json, print_result
from perfgate.cli.reading.report import check_link
from perfgate.errors import HandoffError, InputError, StaleError
from perfgate.github.client import connect
from perfgate.github.comment.publisher import BOT, Place, excuse, set_status
from perfgate.github.comment.publisher import publish as put
from perfgate.github.comment.recipes import Recipe
from perfgate.github.comment.sections import Entry, Section, find_room
from perfgate.github.comment.states import State, combine
from perfgate.github.events import Action, find_merge_base, find_repository, find_sha, plan_pull, read_event
from perfgate.github.handoff.handoff import Subject
from perfgate.github.outputs import MAX_SUMMARY_BYTES, add_summary
from perfgate.github.runs import Finding, Run, collect, identify, was_nothing_planned
from perfgate.github.settings import Settings, load_settings, parse_jobs
from perfgate.report.comment import render_comment, split_head
from perfgate.report.escape import markdown


@click.command()
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--pr", type=click.IntRange(min=1), required=True, metavar="NUMBER")
@click.option("--head-sha", required=True, metavar="SHA", help="The measured commit, 40 digits.")
@click.option("--matrix", metavar="JSON", help="The jobs that `admit` wrote (default: every job of the settings).")
@click.option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@click.option("--run-attempt", type=click.IntRange(min=1), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_court_options
@add_page_options
@SETTINGS
@add_format_option
def publish(settings: Path, matrix: str | None, pages: Path | None, link: str, style: str, **options: Any) -> int:
    """Say on the pull request what the measuring jobs of this run left: comment and commit status.

    With --pages only the pages are written, so that the comment can name the address under which they were kept.
    """
    repository = find_repository(options, "repository")
    run = Run(
        repository=repository,
        run_id=options["run_id"],
        run_attempt=options["run_attempt"],
        head_sha=find_sha(options, "head_sha"),
        pull=connect().get(f"/repos/{repository}/pulls/{options['pr']}"),
    )
    court = build_court(options, settings)
    expected = load_settings(settings).list_jobs() if matrix is None else parse_jobs(matrix)
    findings = collect(connect(), run, expected)
    if pages is not None:
        write_pages(findings, court, pages)
        print_result(style, {"pages": pages}, f"pages: {pages}")
        return 0
    said = say_all(run, judge_all(run, findings, court, check_link(link)), style)
    if style == "json":
        print_json({"sections": said})
    return 0


@click.command()
@EVENT
@add_court_options
@add_page_options
@SETTINGS
@add_format_option
def report(event: Path, settings: Path, pages: Path | None, link: str, style: str, **options: Any) -> int:
    """Say on the pull request what became of a run of the pull request workflow, from its `workflow_run` event.

    A run of a fork is never read, as its workflow file is the fork's: the comment then tells a maintainer how to start one.
    With --pages only the pages of a finished run are written.
    """
    from perfgate.cli.ci.publishing import excuse_all, report_queue  # noqa: PLC0415 - as above

    payload, known = read_event(event), load_settings(settings)
    run = identify(connect(), payload)
    found = None if run.pull is None else plan_pull(run.pull)
    if pages is not None:
        if found is not None and found.action is Action.RUN and payload.get("action") == "completed":
            write_pages(collect(connect(), run, known.list_jobs()), build_court(options, settings), pages)
        print_result(style, {"pages": pages}, f"pages: {pages}")
        return 0
    if found is None:
        said = report_queue(run, payload, known, build_court(options, settings), style)
    elif found.action is Action.SKIP:
        click.echo(found.reason, err=style == "json")
        said = excuse_all(run, payload, known, style)
    else:
        court = build_court(options, settings) if found.action is Action.RUN else None
        said = say_all(run, _build_sections(run, payload, known, court, check_link(link)), style)
    if style == "json":
        print_json({"sections": said})
    return 0


def _build_sections(run: Run, payload: dict[str, Any], known: Settings, court: Court | None, link: str) -> Iterator[Section]:
    """Without a court nothing may be judged: the run belongs to a fork."""
    if court is None:
        for hardware in sorted(known.hardware):
            how = f"    /perfgate run {hardware} {run.head_sha}"
            yield build_section(run.subject(hardware), State.AWAITING, f"A maintainer who has read this commit writes\n\n{how}")
    elif payload.get("action") in {"requested", "in_progress"}:
        state = State.PLANNED if payload["action"] == "requested" else State.RUNNING
        for hardware in sorted(known.hardware):
            yield build_section(run.subject(hardware), state)
    elif was_nothing_planned(connect(), run):
        # The pull request was labelled since, or this run was about another label: a run of its own answers for that.
        click.echo("this run was not to measure anything, so nothing is said", err=True)
    else:
        yield from judge_all(run, collect(connect(), run, known.list_jobs()), court, link)


def judge_all(run: Run, findings: Iterable[Finding], court: Court, link: str) -> Iterator[Section]:
    """Judge what each machine left. GitHub is asked once for the commit that all of them compared with."""
    base_sha = find_base(run)
    for finding in findings:
        subject = run.subject(finding.hardware)
        yield judge_finding(Recipe(subject=subject, base_sha=base_sha, link=link, server_url=find_server()), finding, court)


def judge_finding(recipe: Recipe, finding: Finding, court: Court) -> Section:
    """What is missing outweighs what is there, except a regression that was found."""
    remarks = list(finding.remarks)
    judged: tuple[Judged, ...] = ()
    try:
        judged = judge_handoffs(finding.handoffs, court, recipe)
    except HandoffError as error:
        remarks.append(str(error))
    state = combine([one.verdict.outcome for one in judged])
    if remarks and state is not State.REGRESSION:
        state = finding.state or State.INVALID
    lines = "\n".join(f"- {markdown(remark)}" for remark in remarks)
    cases = [one.case for one in judged]
    add_summary(f"{lines}\n\n{render_comment(cases, MAX_SUMMARY_BYTES // 2)}".strip())
    room = find_room(court.machines) - len(lines) - 2
    headline, body = "", render_comment(cases, room)
    if judged and (not remarks or state is State.REGRESSION):
        # The verdict speaks for the section. Where something is missing too, only a loss may.
        headline, body = split_head(body)
    return build_section(recipe.subject, state, f"{lines}\n\n{body}".strip(), headline)


def find_base(run: Run) -> str:
    """The commit that `run` compared with; nothing in a merge queue, whose commits stand on each other.

    It was asked for once before the run measured. Where GitHub has no answer now, the comment is not kept back by it.
    """
    if run.pull is None:
        return ""
    try:
        return find_merge_base(connect(), run.pull)
    except InputError:
        return find_sha(run.pull, "base.sha")


def find_server() -> str:
    """The address of GitHub, or of the Enterprise server that this job runs for."""
    return os.environ.get("GITHUB_SERVER_URL", "https://github.com")


def build_place(repository: str, pull_request: int) -> Place:
    """Where to speak: the server and the bot's name may differ on GitHub Enterprise and for an app of one's own."""
    return Place(
        repository=repository,
        pull_request=pull_request,
        server_url=find_server(),
        bot=os.environ.get("PERFGATE_BOT", BOT),
    )


def build_section(subject: Subject, state: State, body: str = "", headline: str = "") -> Section:
    """The section of one machine, dated now."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = Entry(head_sha=subject.head_sha, state=state, run_id=subject.run_id, run_attempt=subject.run_attempt, at=at)
    return Section(hardware=subject.hardware, entry=entry, headline=headline, body=body)


def say_all(run: Run, sections: Iterable[Section], style: str) -> list[dict[str, str]]:
    """Publish each section with the job's token; one that is out of date is left. Return what became of each.

    Each has its line as soon as it is published, on standard error where `style` is json, for a step may break off.
    """
    place = build_place(run.repository, run.pull_request)
    said = []
    for section in sections:
        try:
            told = {"state": section.entry.state.value, "comment": put(connect(), place, section)}
        except StaleError as error:
            told = {"left": str(error)}
            line = f"left as it is: {error}"
        else:
            line = f"{told['state']}: {told['comment']}"
        click.echo(f"{section.hardware}: {line}", err=style == "json")
        said.append({"hardware": section.hardware, **told})
    return said


def excuse_all(run: Run, payload: dict[str, Any], known: Settings, style: str) -> list[dict[str, str]]:
    """Say of each machine that it was not asked for, so that a branch may require its status of every pull request."""
    return _excuse(run, set(known.hardware), style) if payload.get("action") == "completed" else []


def _excuse(run: Run, hardware: set[str], style: str) -> list[dict[str, str]]:
    from perfgate.cli.ci.publishing import build_place  # noqa: PLC0415 - these cost what `perfgate --help` must not pay

    place = build_place(run.repository, run.pull_request)
    told = []
    for name in sorted(hardware):
        said = excuse(connect(), place, name, run.head_sha, f"{place.runs_url}/{run.run_id}")
        told.append({"hardware": name, "state": "not asked for" if said else "has an answer already, which stays"})
        click.echo(f"{name}: {told[-1]['state']}", err=style == "json")
    return told


def report_queue(run: Run, payload: dict[str, Any], known: Settings, court: Court, style: str) -> list[dict[str, str]]:
    """Set the statuses of a commit of the merge queue: its `smoke` scenarios' verdicts, and of other machines that they are not
    asked for. There is no pull request to comment on.
    """
    from perfgate.cli.ci.publishing import build_place, build_section, judge_all  # noqa: PLC0415 - as above

    expected = known.list_jobs(is_smoke=True)
    asked = {job.hardware for job in expected}
    place = build_place(run.repository, run.pull_request)
    told = []
    if payload.get("action") == "completed":
        told = _excuse(run, set(known.hardware) - asked, style)
        sections = list(judge_all(run, collect(connect(), run, expected), court, ""))
    else:
        sections = [build_section(run.subject(name), State.RUNNING) for name in sorted(asked)]
    for section in sections:
        set_status(connect(), place, section, f"{place.runs_url}/{run.run_id}")
        told.append({"hardware": section.hardware, "state": section.entry.state.value})
        click.echo(f"{section.hardware}: {section.entry.state.value}", err=style == "json")
    return told
