"""`perfgate github`: what the workflows run, one command a step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from perfgate.cli.ci.handoff import FILE, build_subject
from perfgate.cli.output import add_format_option, print_json, print_result
from perfgate.cli.sections import SectionCommand, add_options, judging_option, option_of, subject_option
from perfgate.errors import InputError, PerfgateError
from perfgate.github.adoption import create_label, list_steps, plan_files, save_files
from perfgate.github.asked.acceptance import Acceptance, fetch_acceptances, is_accepted
from perfgate.github.asked.commands import answer_comment
from perfgate.github.client import GitHub, connect, find_server
from perfgate.github.comment.publisher import find_target
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.comment.states import State
from perfgate.github.events import find_repository, find_sha, read_event
from perfgate.github.handoff.handoff import HandoffSubject
from perfgate.github.judging import NOTHING_TO_JUDGE, JudgingOptions, judge_job
from perfgate.github.learning import learn_from
from perfgate.github.outputs import MAX_SUMMARY_BYTES, add_summary, format_annotation, write_outputs
from perfgate.github.pages import write_pages
from perfgate.github.planning import Measurement, admit_run, choose_jobs, name_machines, plan_measurement
from perfgate.github.reporting import MachineReport, Reporter, announce, judge_machines, report_run
from perfgate.github.reporting import publish as publish_sections
from perfgate.github.runs import MachineResult, WorkflowRun, collect, fetch_jobs, fetch_run, identify
from perfgate.github.settings import MachineSettings, MatrixJob, Settings, format_jobs, load_settings, parse_jobs
from perfgate.github.statuses import fetch_statuses
from perfgate.report.comment import render_comment
from perfgate.scenario.catalog import list_scenarios
from perfgate.scenario.schema import NAME

MAIN = "refs/heads/main"
_left_option = option_of("What the jobs left")
SETTINGS = judging_option("--settings", type=FILE, default=Path(".github/perfgate.toml"), show_default=True, metavar="FILE")
EVENT = click.option("--event", type=FILE, envvar="GITHUB_EVENT_PATH", required=True, metavar="FILE")
_add_judging_options = add_options(
    judging_option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to judge by; repeatable."),
    judging_option("--baselines", multiple=True, type=FILE, metavar="DIR", help="Folder of stored noise bands; repeatable."),
)
_PAGES = judging_option(
    "--pages",
    type=FILE,
    metavar="DIR",
    help="Write there, last, a page and a result folder a scenario, DIR/LABEL/SCENARIO; the comment then names this run.",
)


@click.group(name="github")
def command() -> None:
    """Plan, admit, judge and publish measurements of pull requests. Tokens come from the environment, GITHUB_TOKEN."""


@command.command()
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME", help="The adopting repository.")
@click.option("--commit", required=True, metavar="SHA", help="The commit of perfgate that you have reviewed, all 40 digits.")
@click.option("--hardware", "machines", multiple=True, required=True, metavar="LABEL", help="A kind of machine; repeatable.")
@click.option("--scenario", "scenarios", multiple=True, required=True, metavar="NAME", help="What is measured; repeatable.")
@click.option("--to", "root", type=FILE, default=Path(), show_default=True, metavar="DIR", help="A checkout of the repository.")
@add_format_option
def init(root: Path, style: str, machines: tuple[str, ...], scenarios: tuple[str, ...], **options: str) -> int:
    """Write the files that another repository adds, create the label where GITHUB_TOKEN may, and list what a person must do.

    Nothing is written where a file is there that says another thing.
    """
    repository, commit = find_repository(options, "repository"), find_sha(options, "commit")
    known = Settings(hardware={name: check_machine(name, scenarios) for name in machines})
    files = plan_files(root, commit, sorted(known.hardware), scenarios)
    save_files(files)
    has_token = bool(os.environ.get("GITHUB_TOKEN"))
    label = create_label(connect(), repository) if has_token else "label perfgate: not created: GITHUB_TOKEN is not set"
    steps = list_steps(repository, find_server(), sorted(known.hardware), has_label="not created" not in label)
    lines = [*map(str, files), label, "", *(f"{number}. {step}" for number, step in enumerate(steps, 1))]
    print_result(style, {"files": [str(path) for path in files], "label": label, "steps": steps}, *lines)
    return 0


def check_machine(name: str, scenarios: tuple[str, ...]) -> MachineSettings:
    """What is measured on a machine. Raise InputError for a name that settings would refuse, or a scenario that is none."""
    for word, what in ((name, "--hardware"), *((scenario, "--scenario") for scenario in scenarios)):
        if not re.fullmatch(NAME, word):
            raise InputError(f"{what} {word[:64]!r}: no name; it has small letters, digits, and single dots and dashes")
    if unknown := sorted(set(scenarios) - set(list_scenarios())):
        raise InputError(f"--scenario {unknown[0]}: does not ship with perfgate; `perfgate scenarios` lists those that do")
    return MachineSettings(scenarios=scenarios)


@command.command()
@SETTINGS
@add_format_option
def jobs(settings: Path, style: str) -> int:
    """Write every job of the settings as the output matrix, for a workflow that the clock starts."""
    wanted = load_settings(settings).list_jobs(is_night=True)
    matrix = format_jobs(wanted)
    write_outputs({"matrix": matrix})
    print_result(style, {"matrix": wanted}, f"matrix={matrix}")
    return 0


@command.command()
@SETTINGS
@EVENT
@click.option("--event-name", envvar="GITHUB_EVENT_NAME", required=True)
@add_format_option
def plan(settings: Path, event: Path, event_name: str, style: str) -> int:
    """Decide whether this event is measured, and write the outputs action, reason, head_sha, base_sha, matrix and scenarios.

    A pull request is compared with the commit where it left its base branch, which takes a token that may read.
    """
    payload = read_event(event)
    print_outputs(plan_measurement(event_name, payload, load_settings(settings), connect), style)
    return 0


def print_outputs(values: Mapping[str, str], style: str, **more: Any) -> None:
    """Write outputs for the jobs that follow, and show them; as JSON the matrix is no text, and `more` stands beside them."""
    write_outputs(values)
    content = {**values, "matrix": orjson.loads(values["matrix"]), **more}
    print_result(style, content, *(f"{name}={value}" for name, value in values.items()))


@command.command(cls=SectionCommand)
@_left_option("--action", type=click.Choice(["run", "skip", "await", "refuse"]), required=True, help="What `plan` decided.")
@_left_option("--result", required=True, metavar="RESULT", help="What became of the measuring jobs: success, skipped, ...")
@_left_option("--matrix", required=True, metavar="JSON", help="The jobs that `plan` wrote.")
@_left_option("--artifacts", type=FILE, required=True, metavar="DIR", help="Folder with one folder an artifact.")
@subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@subject_option("--pr", type=click.IntRange(min=0), required=True, metavar="NUMBER", help="The pull request; 0 for none.")
@subject_option("--head-sha", required=True, metavar="SHA")
@subject_option("--base-sha", required=True, metavar="SHA", help="The commit that it was compared with.")
@subject_option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID")
@subject_option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT")
@_add_judging_options
@SETTINGS
@add_format_option
def verdict(action: str, result: str, matrix: str, artifacts: Path, settings: Path, style: str, **options: Any) -> int:
    """Be the required check: pass only what was measured and not found slower, or what was not to be measured.

    No token is needed. The exit code is the worst verdict's; 3 where a job left nothing to judge. With --format json the
    lines that GitHub shows on the run go to standard error, where it reads them too.
    """
    if action != "run":
        return pass_unmeasured(action, {**options, "result": result}, style)
    wanted, base_sha = parse_jobs(matrix), find_sha(options, "base_sha")
    codes = [0 if wanted and result == "success" else 3]
    shown: list[Mapping[str, Any]] = []
    for job in wanted:
        subject = build_subject({**options, "hardware": job.hardware})
        reproduction = Reproduction(subject=subject, base_sha=base_sha, server_url=find_server())
        found = judge_job(job, artifacts, reproduction, build_judging(options, settings))
        if found.problem:
            click.echo(f"perfgate: {found.problem}", err=True)
        else:
            add_summary(render_comment(found.cases, MAX_SUMMARY_BYTES // 2))
        for line in found.annotations:
            click.echo(line, err=style == "json")
        is_excused = 1 in found.exit_codes and options["pr"] and is_accepted(found.cases, find_acceptances(subject))
        if is_excused:
            click.echo(f"{job.hardware} {job.scenario}: accepted by a maintainer for this commit", err=style == "json")
        codes += [0 if is_excused and code == 1 else code for code in found.exit_codes]
        shown += ({**facts, "outcome": "accepted"} if is_excused else facts for facts in found.facts)
    if style == "json":
        print_json({"action": action, "jobs": shown})
    return 1 if 1 in codes else max(codes)


def find_acceptances(subject: HandoffSubject) -> tuple[Acceptance, ...]:
    """What was accepted of a commit on a machine. None without a token: then the verdict stands."""
    if not os.environ.get("GITHUB_TOKEN"):
        return ()
    target = find_target(subject.repository, subject.pull_request)
    return fetch_acceptances(connect(), target, subject.head_sha, subject.hardware)


def pass_unmeasured(action: str, options: Mapping[str, Any], style: str) -> int:
    """End the check of a commit that this run did not measure, unless an earlier run found it slower.

    Taking the label away, or another pull request of the same commit, must not turn the check green again.
    """
    if options["result"] != "skipped":
        raise InputError(f"--result {options['result'][:20]}: nothing was to be measured, and yet jobs ran")
    if action == "refuse":
        click.echo("perfgate: refused: what goes into this base branch is not measured; take the label away", err=True)
        return NOTHING_TO_JUDGE
    slower: tuple[str, ...] = ()
    if options["pr"]:
        standing = fetch_statuses(connect(), find_repository(options, "repository"), find_sha(options, "head_sha"))
        slower = tuple(sorted(name for name, status in standing.items() if status.state == "failure"))
    said = f"{', '.join(slower)}: slower, as measured before" if slower else "nothing was measured, so nothing is said"
    print_result(style, {"action": action, "jobs": [], "slower": slower}, f"{action}: {said}")
    return 1 if slower else 0


def build_judging(options: Mapping[str, Any], settings: Path) -> JudgingOptions:
    """Say what hand-offs are judged by."""
    rules = load_settings(settings)
    known = rules.list_jobs()
    return JudgingOptions(
        scenarios=options["scenarios"],
        baselines=options["baselines"],
        scenarios_in_pr=len(known),
        machines=len(name_machines(known)),
        uncalibrated=rules.uncalibrated,
    )


@command.command()
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--ref", required=True, envvar="GITHUB_REF", help="The branch whose workflow file runs.")
@click.option("--pr", type=click.IntRange(min=1), required=True)
@click.option("--head-sha", required=True, metavar="SHA", help="The commit that a maintainer has read, all 40 digits.")
@click.option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@click.option("--run-attempt", type=click.IntRange(min=1), default=1, envvar="GITHUB_RUN_ATTEMPT")
@click.option("--hardware", default="", help="One machine of the settings; empty for all.")
@click.option("--only", "scenario", default="", help="Scenarios of the settings, with commas between; empty for all.")
@SETTINGS
@add_format_option
def admit(settings: Path, style: str, **options: Any) -> int:
    """Let a dispatched measurement through only for the head of the pull request, and only from the main branch's workflow."""
    if options["ref"] != MAIN:
        raise InputError(f"--ref {options['ref'][:80]!r}: the workflow runs from {MAIN} only; start it from there")
    head, repository = find_sha(options, "head_sha"), find_repository(options, "repository")
    known = load_settings(settings)
    wanted = choose_jobs(known, options["hardware"], options["scenario"])
    github = connect()
    target = find_target(repository, options["pr"])
    run = fetch_run(github, target, head, run_id=options["run_id"], run_attempt=options["run_attempt"])
    base = admit_run(github, run, known)
    reporter = build_reporter(github, run)
    sections = print_reports(announce(reporter, dict.fromkeys(name_machines(wanted), State.PLANNED)), style)
    measurement = Measurement(
        pull_request=options["pr"], head_sha=head, base_sha=base, jobs=wanted, scenarios=len(known.list_jobs())
    )
    print_outputs(measurement.outputs, style, sections=sections)
    return 0


@command.command(name="command")
@EVENT
@SETTINGS
@click.option("--workflow", default="perfgate-dispatch.yml", show_default=True)
@add_format_option
def handle_comment(event: Path, settings: Path, workflow: str, style: str) -> int:
    """Do what a comment asks for, if its author may, and answer on the pull request."""
    try:
        said = answer_comment(connect(), read_event(event), load_settings(settings), workflow, now=read_clock())
    except PerfgateError as error:
        click.echo(format_annotation("error", "perfgate: the command was refused", str(error)), err=style == "json")
        raise InputError(f"nothing was started: {error}") from None
    print_result(style, {"said": said}, said)
    return 0


@command.command()
@click.option("--matrix", required=True, metavar="JSON", help="The jobs that `jobs` wrote.")
@click.option("--artifacts", type=FILE, required=True, metavar="DIR", help="Folder with one folder an artifact.")
@click.option("--to", "target", required=True, type=FILE, metavar="DIR", help="Folder of baselines to add to.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to read by; repeatable.")
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--head-sha", required=True, metavar="SHA", help="The commit of the main branch that both arms ran.")
@click.option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID")
@click.option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_format_option
def learn(matrix: str, artifacts: Path, target: Path, scenarios: tuple[str, ...], style: str, **options: Any) -> int:
    """Add the main branch's own measurements to stored baselines, for a person to review.

    A machine whose measurement is missing or became slower is left out, with a warning on the run: only a person may accept a
    slower level, with a reason. With --format json everything but the document goes to standard error.
    """
    subjects = ((job, build_subject({**options, "pr": 0, "hardware": job.hardware})) for job in parse_jobs(matrix))
    shown = []
    for lesson in learn_from(subjects, artifacts, scenarios, target):
        click.echo(lesson.message, err=style == "json")
        shown.append(lesson.facts)
    if style == "json":
        print_json({"jobs": shown})
    return 0


@command.command(cls=SectionCommand)
@subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@subject_option("--pr", type=click.IntRange(min=1), required=True, metavar="NUMBER")
@subject_option("--head-sha", required=True, metavar="SHA", help="The measured commit, 40 digits.")
@_left_option("--matrix", metavar="JSON", help="The jobs that `admit` wrote (default: every job of the settings).")
@subject_option("--run-id", type=click.IntRange(min=1), required=True, envvar="GITHUB_RUN_ID")
@subject_option("--run-attempt", type=click.IntRange(min=1), default=1, envvar="GITHUB_RUN_ATTEMPT")
@_add_judging_options
@_PAGES
@SETTINGS
@add_format_option
def publish(settings: Path, matrix: str | None, pages: Path | None, style: str, **options: Any) -> int:
    """Say on the pull request what the measuring jobs of this run left: commit status, comment, pages."""
    repository = find_repository(options, "repository")
    head_sha = find_sha(options, "head_sha")
    github = connect()
    run_id, run_attempt = options["run_id"], options["run_attempt"]
    run = fetch_run(github, find_target(repository, options["pr"]), head_sha, run_id=run_id, run_attempt=run_attempt)
    judging, known = build_judging(options, settings), load_settings(settings)
    results = collect(github, run, choose_known(known, matrix), fetch_jobs(github, run))
    reporter = build_reporter(github, run, find_link(pages, repository, run_id))
    shown = print_reports(publish_sections(reporter, tuple(judge_machines(reporter, results, judging))), style)
    if pages is not None:
        print_pages(results, judging, pages)
    if style == "json":
        print_json({"sections": shown})
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


@command.command()
@EVENT
@click.option("--run-id", type=click.IntRange(min=0), default=0, envvar="GITHUB_RUN_ID", help="The run of this job itself.")
@_add_judging_options
@_PAGES
@SETTINGS
@add_format_option
def report(event: Path, settings: Path, pages: Path | None, run_id: int, style: str, **options: Any) -> int:
    """Say on the pull request what became of a run of the pull request workflow, from its `workflow_run` event.

    A run of a fork is never read, as its workflow file is the fork's: the comment then tells a maintainer how to start one.
    Statuses come first, then the comment, then the pages.
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


def print_pages(results: Iterable[MachineResult], judging: JudgingOptions, pages: Path) -> None:
    """Write the pages, with a line in the log for each as soon as it is written."""
    for line in write_pages(results, judging, pages):
        click.echo(line, err=True)


def print_reports(reports: Iterable[MachineReport], style: str) -> list[Mapping[str, str]]:
    """Print a line for each report as soon as it is there, on standard error where `style` is json: a step may break off."""
    shown = []
    for found in reports:
        click.echo(found.line, err=style == "json")
        shown.append(found.facts)
    return shown


def build_reporter(github: GitHub, run: WorkflowRun, link: str = "") -> Reporter:
    """Report `run` through GitHub, on this step's summary page and in its log, dated by this machine's clock."""
    return Reporter(
        github=github,
        run=run,
        target=find_target(run.repository, run.pull_request),
        summarise=add_summary,
        now=read_clock,
        note=lambda line: click.echo(line, err=True),
        keep=lambda _: None,
        link=link,
    )


def read_clock() -> str:
    """The time in UTC as a hand-off and a comment write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
