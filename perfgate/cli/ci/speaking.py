"""Steps of jobs that may comment on a pull request: they hold a token, and run the main branch's code alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from perfgate.cli.ci.steps import (
    EVENT,
    PAGES,
    SETTINGS,
    add_judging_options,
    build_judging,
    left_option,
    print_outputs,
)
from perfgate.cli.output import FILE, add_format_option, print_json, print_result, say
from perfgate.cli.sections import SectionCommand, judging_option, subject_option
from perfgate.errors import InputError, PerfgateError
from perfgate.github.asked.answers import fetch_search, post_comparison, post_search
from perfgate.github.asked.commands import answer_comment
from perfgate.github.client import GitHub, connect, find_server
from perfgate.github.comment.states import State
from perfgate.github.comment.target import find_target
from perfgate.github.events import find_repository, find_sha, read_event
from perfgate.github.night.umbrella import Night, keep_issue, read_findings
from perfgate.github.outputs import add_summary, format_annotation
from perfgate.github.pages import write_pages
from perfgate.github.planning import Dispatch, admit_dispatch, name_machines, require_searchable
from perfgate.github.reporter import MachineReport, Reporter, announce
from perfgate.github.reporter import publish as publish_sections
from perfgate.github.reporting import judge_machines, report_run
from perfgate.github.runs.collecting import MachineResult, collect, mark_unasked
from perfgate.github.runs.control import Task
from perfgate.github.runs.jobs import fetch_jobs
from perfgate.github.runs.run import WorkflowRun, fetch_run, identify
from perfgate.github.settings import JudgingOptions, MatrixJob, Settings, load_settings, parse_jobs
from perfgate.storage.journal import write_utc

MAIN = "refs/heads/main"


@click.command(cls=SectionCommand)
@subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@subject_option("--ref", required=True, envvar="GITHUB_REF", help="The branch whose workflow file runs.")
@subject_option("--pr", type=click.IntRange(min=1), required=True)
@subject_option("--head-sha", required=True, metavar="SHA", help="The commit that a maintainer has read, all 40 digits.")
@subject_option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@subject_option("--run-attempt", type=click.IntRange(min=1), default=1, envvar="GITHUB_RUN_ATTEMPT")
@judging_option("--hardware", default="", help="One kind of machine of the settings; empty for all.")
@judging_option("--only", "scenario", default="", help="Scenarios of the settings, separated by commas; empty for all.")
@judging_option("--task", type=click.Choice([task.value for task in Task]), default=Task.MEASURE.value, show_default=True)
@subject_option("--base-sha", default="", metavar="SHA", help="The commit that a comparison compares --head-sha with.")
@SETTINGS
@add_format_option
def admit(settings: Path, style: str, **options: Any) -> int:
    """Admit a dispatched run only from the main branch's workflow, and only for the head of the pull request.

    A comparison needs both commits; a search takes one machine and one scenario.
    """
    if options["ref"] != MAIN:
        raise InputError(f"--ref {options['ref'][:80]!r}: the workflow runs from {MAIN} only; start it from there")
    head, target = find_sha(options, "head_sha"), find_target(find_repository(options, "repository"), options["pr"])
    asked = Dispatch(
        task=Task(options["task"]),
        target=target,
        head_sha=head,
        base_sha=find_sha(options, "base_sha") if options["base_sha"] else "",
        hardware=options["hardware"],
        scenarios=options["scenario"],
        run_id=options["run_id"],
        run_attempt=options["run_attempt"],
    )
    github = connect()
    run, measurement = admit_dispatch(github, asked, load_settings(settings))
    planned = name_machines(measurement.jobs) if asked.task is Task.MEASURE else ()
    reports = announce(build_reporter(github, run), dict.fromkeys(planned, State.PLANNED)) if planned else ()
    sections = print_reports(reports, style)
    print_outputs({**measurement.outputs, "task": asked.task.value}, style, sections=sections)
    return 0


@click.command(name="command")
@EVENT
@SETTINGS
@add_format_option
def handle_comment(event: Path, settings: Path, style: str) -> int:
    """Carry out the command in a comment, if its author may, and answer on the pull request."""
    try:
        said = answer_comment(connect(), read_event(event), load_settings(settings), now=write_utc())
    except PerfgateError as error:
        say(format_annotation("error", "perfgate: the command was refused", str(error)), err=style == "json")
        raise InputError(f"nothing was started: {error}") from None
    print_result(style, {"said": said}, said)
    return 0


@click.command(cls=SectionCommand)
@subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@subject_option("--pr", type=click.IntRange(min=1), required=True, metavar="NUMBER")
@subject_option("--head-sha", required=True, metavar="SHA", help="The measured commit, 40 digits.")
@left_option("--matrix", metavar="JSON", help="The jobs that `admit` wrote (default: every job of the settings).")
@subject_option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@subject_option("--run-attempt", type=click.IntRange(min=1), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_judging_options
@PAGES
@SETTINGS
@add_format_option
def publish(settings: Path, matrix: str | None, pages: Path | None, style: str, **options: Any) -> int:
    """Publish the results of this run on the pull request: commit status, comment, pages."""
    repository = find_repository(options, "repository")
    head_sha = find_sha(options, "head_sha")
    github = connect()
    run_id, run_attempt = options["run_id"], options["run_attempt"]
    run = fetch_run(github, find_target(repository, options["pr"]), head_sha, run_id=run_id, run_attempt=run_attempt)
    judging, known = build_judging(options, settings), load_settings(settings)
    asked = choose_known(known, matrix)
    results = mark_unasked(collect(github, run, asked, fetch_jobs(github, run)), known.list_jobs(), asked)
    reporter = build_reporter(github, run, find_link(pages, repository, run_id))
    shown = print_reports(publish_sections(reporter, tuple(judge_machines(reporter, results, judging))), style)
    if pages is not None:
        print_pages(results, judging, pages)
    if style == "json":
        print_json({"sections": shown})
    return 0


@click.command(cls=SectionCommand)
@subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@subject_option("--pr", type=click.IntRange(min=1), required=True, metavar="NUMBER")
@judging_option("--task", type=click.Choice([Task.COMPARE.value, Task.BISECT.value]), required=True, help="The request.")
@subject_option("--head-sha", required=True, metavar="SHA", help="The candidate, or the last commit of the search.")
@subject_option("--base-sha", required=True, metavar="SHA", help="The commit of the base.")
@left_option("--matrix", required=True, metavar="JSON", help="The jobs that `admit` wrote.")
@subject_option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@subject_option("--run-attempt", type=click.IntRange(min=1), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_judging_options
@SETTINGS
@add_format_option
def answer(settings: Path, matrix: str, task: str, style: str, **options: Any) -> int:
    """Publish the result of a requested comparison or search in its own comment. Sets no status."""
    head, base = find_sha(options, "head_sha"), find_sha(options, "base_sha")
    target = find_target(find_repository(options, "repository"), options["pr"])
    github, known = connect(), choose_known(load_settings(settings), matrix)
    of = None if task == Task.COMPARE else head
    found = fetch_run(github, target, of, run_id=options["run_id"], run_attempt=options["run_attempt"])
    run = replace(found, head_sha=head)
    jobs = fetch_jobs(github, run)
    if task == Task.COMPARE:
        reporter = replace(build_reporter(github, run), base_sha=base)
        sections = judge_machines(reporter, collect(github, run, known, jobs), build_judging(options, settings))
        address = post_comparison(github, target, run, base, tuple(sections))
    else:
        job = require_searchable(run.pull or {}, known)
        address = post_search(github, target, run, job, fetch_search(github, run, job, jobs, base))
    print_result(style, {"comment": address}, address)
    return 0


def choose_known(settings: Settings, matrix: str | None) -> tuple[MatrixJob, ...]:
    """The jobs of the settings that `matrix` names, all without one: where each must have run is the settings' say."""
    known = settings.list_jobs()
    if matrix is None:
        return known
    wanted = {(job.hardware, job.scenario) for job in parse_jobs(matrix)}
    return tuple(job for job in known if (job.hardware, job.scenario) in wanted)


def find_link(pages: Path | None, repository: str, run_id: int) -> str:
    """Where the pages will be that this job writes: at the foot of its own run, which is known before they are kept."""
    return "" if pages is None else f"{find_server()}/{repository}/actions/runs/{run_id}#artifacts"


@click.command()
@EVENT
@click.option("--run-id", type=click.IntRange(min=0), default=0, envvar="GITHUB_RUN_ID", help="The run of this job itself.")
@add_judging_options
@PAGES
@SETTINGS
@add_format_option
def report(event: Path, settings: Path, pages: Path | None, run_id: int, style: str, **options: Any) -> int:
    """Publish the results of a run of the pull request workflow, from its `workflow_run` event.

    A run of a fork is never read, because its workflow file is the fork's; the comment then tells a maintainer how to start a
    measurement. Order: statuses, comment, pages.
    """
    payload, known = read_event(event), load_settings(settings)
    github = connect()
    run = identify(github, payload)
    judging = build_judging(options, settings)
    kept: list[MachineResult] = []
    reporter = replace(build_reporter(github, run, find_link(pages, run.repository, run_id)), keep=kept.extend)
    shown = print_reports(report_run(reporter, payload, known, judging), style)
    if pages is not None and kept:
        print_pages(kept, judging, pages)
    if style == "json":
        print_json({"sections": shown})
    return 0


@click.command()
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--lessons", type=FILE, required=True, metavar="FILE", help="Output of `learn --format json`.")
@click.option("--head-sha", required=True, metavar="SHA", help="The commit of the main branch that was measured.")
@click.option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@add_format_option
def umbrella(repository: str, lessons: Path, run_id: int, style: str, **options: str) -> int:
    """Open, update or close the issue about what became slower on the main branch, after a nightly run."""
    target = find_target(find_repository({"repository": repository}, "repository"), 0)
    night = Night(at=write_utc(), head_sha=find_sha(options, "head_sha"), run_id=run_id, findings=read_findings(lessons))
    said = keep_issue(connect(), target, night)
    print_result(style, {"said": said}, said)
    return 0


def print_pages(results: Iterable[MachineResult], judging: JudgingOptions, pages: Path) -> None:
    """Write the pages, with a line in the log for each as soon as it is written."""
    for line in write_pages(results, judging, pages):
        say(line, err=True)


def print_reports(reports: Iterable[MachineReport], style: str) -> list[Mapping[str, str]]:
    """Print a line for each report as soon as it is there, on standard error where `style` is json: a step may break off."""
    shown = []
    for found in reports:
        say(found.line, err=style == "json")
        shown.append(found.facts)
    return shown


def build_reporter(github: GitHub, run: WorkflowRun, link: str = "") -> Reporter:
    """Report `run` through GitHub, on this step's summary page and in its log, dated by this machine's clock."""
    target = find_target(run.repository, run.pull_request)
    return Reporter(
        github=github,
        run=run,
        target=target,
        read_comments=cache(lambda: tuple(github.list_all(target.comments))),
        summarise=add_summary,
        now=write_utc,
        note=lambda line: say(line, err=True),
        keep=lambda _: None,
        link=link,
    )
