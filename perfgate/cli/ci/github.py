"""`perfgate github`: what the workflows run, one command a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson

from perfgate.cli.ci.handoff import build_subject
from perfgate.cli.ci.judging import EVENT, FILE, SETTINGS, add_court_options, annotate, build_court, open_and_judge
from perfgate.cli.ci.learning import jobs, learn
from perfgate.cli.ci.publishing import build_place, build_section, find_server, publish, report, say_all
from perfgate.cli.output import add_format_option, print_json, print_result
from perfgate.errors import HandoffError, InputError, PerfgateError
from perfgate.github.client import connect
from perfgate.github.comment.commands import start
from perfgate.github.comment.publisher import require_head
from perfgate.github.comment.recipes import Recipe
from perfgate.github.comment.states import State
from perfgate.github.events import Action, find_merge_base, find_repository, find_sha, read_event
from perfgate.github.events import plan as decide
from perfgate.github.outputs import MAX_SUMMARY_BYTES, add_summary, format_annotation, write_outputs
from perfgate.github.runs import Run
from perfgate.github.settings import format_jobs, load_settings, parse_jobs
from perfgate.report.comment import render_comment

MAIN = "refs/heads/main"


@click.group(name="github")
def command() -> None:
    """Plan, admit, judge and publish measurements of pull requests. Tokens come from the environment, GITHUB_TOKEN."""


command.add_command(jobs)
command.add_command(learn)
command.add_command(publish)
command.add_command(report)


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
    found = decide(event_name, payload)
    known = load_settings(settings)
    wanted = known.list_jobs(is_smoke=found.is_smoke)
    base = found.base_sha
    if found.action is Action.RUN and not found.is_smoke:
        base = find_merge_base(connect(), payload["pull_request"])
    write_plan(
        {
            # A merge queue without a smoke suite measures nothing.
            "action": found.action.value if wanted else "skip",
            "reason": found.reason,
            "pull_request": str(found.pull_request),
            "head_sha": found.head_sha,
            "base_sha": base,
            "matrix": format_jobs(wanted),
            "scenarios": str(len(known.list_jobs())),
        },
        style,
    )
    return 0


def write_plan(values: dict[str, str], style: str, **said: Any) -> None:
    """Write outputs for the jobs that follow, and show them; as JSON the matrix is no text, and `said` stands beside them."""
    write_outputs(values)
    content = {**values, "matrix": orjson.loads(values["matrix"]), **said}
    print_result(style, content, *(f"{name}={value}" for name, value in values.items()))


@command.command()
@click.option("--action", type=click.Choice(["run", "skip", "await"]), required=True, help="What `plan` decided.")
@click.option("--result", required=True, metavar="RESULT", help="What became of the measuring jobs: success, skipped, ...")
@click.option("--matrix", required=True, metavar="JSON", help="The jobs that `plan` wrote.")
@click.option("--artifacts", type=FILE, required=True, metavar="DIR", help="Folder with one folder an artifact.")
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--pr", type=click.IntRange(min=0), required=True, metavar="NUMBER", help="The pull request; 0 for none.")
@click.option("--head-sha", required=True, metavar="SHA")
@click.option("--base-sha", required=True, metavar="SHA", help="The commit that it was compared with.")
@click.option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID")
@click.option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_court_options
@SETTINGS
@add_format_option
def verdict(action: str, result: str, matrix: str, artifacts: Path, settings: Path, style: str, **options: Any) -> int:  # noqa: PLR0913, PLR0917 - click hands over one argument an option
    """Be the required check: pass only what was measured and not found slower, or what was not to be measured.

    No token is needed. The exit code is the worst verdict's; 3 where a job left nothing to judge. With --format json the
    lines that GitHub shows on the run go to standard error, where it reads them too.
    """
    if action != "run":
        if result != "skipped":
            raise InputError(f"--result {result[:20]}: nothing was to be measured, and yet jobs ran")
        print_result(style, {"action": action, "jobs": []}, f"{action}: nothing was measured, so nothing is said")
        return 0
    wanted, base_sha = parse_jobs(matrix), find_sha(options, "base_sha")
    codes = [0 if wanted and result == "success" else 3]
    said: list[dict[str, Any]] = []
    for job in wanted:
        recipe = Recipe(
            subject=build_subject({**options, "hardware": job.hardware}), base_sha=base_sha, server_url=find_server()
        )
        path = artifacts / f"perfgate-{job.hardware}-{job.scenario}" / f"handoff-{job.scenario}.json"
        try:
            judged = open_and_judge((path,), recipe, build_court(options, settings))
        except HandoffError as error:
            click.echo(f"::error title=perfgate {job.hardware}::nothing to judge", err=style == "json")
            click.echo(f"perfgate: {error}", err=True)
            codes.append(3)
            said.append({"hardware": job.hardware, "scenario": job.scenario, "problem": str(error)})
            continue
        add_summary(render_comment([one.case for one in judged], MAX_SUMMARY_BYTES // 2))
        codes += [one.verdict.outcome.exit_code for one in judged]
        for line in annotate(judged):
            click.echo(line, err=style == "json")
        said += [
            {
                "hardware": job.hardware,
                "scenario": one.verdict.scenario,
                "outcome": one.verdict.outcome.value,
                "reasons": one.verdict.reasons,
            }
            for one in judged
        ]
    if style == "json":
        print_json({"action": action, "jobs": said})
    return 1 if 1 in codes else max(codes)


@command.command()
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--ref", required=True, envvar="GITHUB_REF", help="The branch whose workflow file runs.")
@click.option("--pr", type=click.IntRange(min=1), required=True)
@click.option("--head-sha", required=True, metavar="SHA", help="The commit that somebody has read, all 40 digits.")
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
    known = load_settings(settings).list_jobs()
    named = {word.strip() for word in options["scenario"].split(",")} - {""}
    machine = [job for job in known if options["hardware"] in ("", job.hardware)]
    wanted = [job for job in machine if not named or job.scenario in named]
    if not wanted or named - {job.scenario for job in wanted}:
        raise InputError("--hardware, --only: the settings have no such machine with such a scenario")
    github = connect()
    require_head(github, build_place(repository, options["pr"]), head)
    pull = github.get(f"/repos/{repository}/pulls/{options['pr']}")
    base = find_merge_base(github, pull)
    run = Run(repository=repository, run_id=options["run_id"], run_attempt=options["run_attempt"], head_sha=head, pull=pull)
    planned = (build_section(run.subject(name), State.PLANNED) for name in sorted({job.hardware for job in wanted}))
    said = say_all(run, planned, style)
    write_plan(
        {
            "head_sha": head,
            "base_sha": base,
            "pull_request": str(options["pr"]),
            "matrix": format_jobs(wanted),
            "scenarios": str(len(known)),
        },
        style,
        sections=said,
    )
    return 0


@command.command(name="command")
@EVENT
@SETTINGS
@click.option("--workflow", default="perfgate-dispatch.yml", show_default=True)
@add_format_option
def obey(event: Path, settings: Path, workflow: str, style: str) -> int:
    """Start the measurement that a comment asks for, if its author may write to the repository."""
    try:
        said = start(connect(), read_event(event), load_settings(settings), workflow)
    except PerfgateError as error:
        # This token may not write to the pull request, so the page of the run is where the author finds the reason.
        click.echo(format_annotation("error", "perfgate: nothing was started", str(error)), err=style == "json")
        raise InputError(f"nothing was started: {error}") from None
    print_result(style, {"said": said}, said)
    return 0
