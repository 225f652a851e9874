"""`perfgate github`: what the workflows run, one command a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from perfgate.cli.handoff import add_subject_options, build_subject
from perfgate.cli.judging import EVENT, FILE, SETTINGS, add_court_options, annotate, build_court, open_and_judge
from perfgate.cli.publishing import build_place, publish, report
from perfgate.errors import GitHubError, InputError

MAIN = "refs/heads/main"


@click.group(name="github")
def command() -> None:
    """Plan, admit, judge and publish measurements of pull requests. Tokens come from the environment, GITHUB_TOKEN."""


command.add_command(publish)
command.add_command(report)


@command.command()
@SETTINGS
@EVENT
@click.option("--event-name", envvar="GITHUB_EVENT_NAME", required=True)
def plan(settings: Path, event: Path, event_name: str) -> int:
    """Decide whether this event is measured, and write the outputs action, reason, head_sha, base_sha and matrix."""
    from perfgate.github.events import plan as decide  # noqa: PLC0415 - these cost what `perfgate --help` must not pay
    from perfgate.github.events import read_event  # noqa: PLC0415
    from perfgate.github.settings import load_settings  # noqa: PLC0415

    known = load_settings(settings)
    found = decide(event_name, read_event(event), known.label)
    write_plan(
        {
            "action": found.action.value,
            "reason": found.reason,
            "pull_request": str(found.pull_request),
            "head_sha": found.head_sha,
            "base_sha": found.base_sha,
            "matrix": format_matrix(known.list_jobs(is_smoke=found.is_smoke)),
        }
    )
    return 0


def write_plan(values: dict[str, str]) -> None:
    """Write outputs for the jobs that follow, and show them."""
    from perfgate.github.outputs import write_outputs  # noqa: PLC0415 - as above

    write_outputs(values)
    for name, value in values.items():
        click.echo(f"{name}={value}")


def format_matrix(jobs: Sequence[dict[str, str]]) -> str:
    """Write jobs as the JSON that `strategy.matrix.include` takes."""
    import orjson  # noqa: PLC0415 - as above

    return orjson.dumps(jobs).decode()


@command.command()
@click.argument("artifacts", metavar="ARTIFACT...", nargs=-1, required=True, type=FILE)
@add_subject_options
@add_court_options
@SETTINGS
def judge(artifacts: tuple[Path, ...], settings: Path, **options: Any) -> int:
    """Judge hand-offs and show the verdicts on the run's page; no token needed. The exit code is the worst verdict's."""
    from perfgate.github.outputs import add_summary  # noqa: PLC0415 - as above

    judged = open_and_judge(artifacts, build_subject(options), build_court(options, settings))
    add_summary("\n\n".join(one.markdown for one in judged))
    for line in annotate(judged):
        click.echo(line)
    codes = [one.verdict.outcome.exit_code for one in judged]
    return 1 if 1 in codes else max(codes)


@command.command()
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--ref", required=True, envvar="GITHUB_REF", help="The branch whose workflow file runs.")
@click.option("--pr", type=click.IntRange(min=1), required=True)
@click.option("--head-sha", required=True, metavar="SHA", help="The commit that somebody has read, all 40 digits.")
@click.option("--hardware", default="", help="One machine of the settings; empty for all.")
@click.option("--only", "scenario", default="", help="One scenario of the settings; empty for all.")
@SETTINGS
def admit(settings: Path, **options: Any) -> int:
    """Let a dispatched measurement through only for the head of the pull request, and only from the main branch's workflow."""
    from perfgate.github.client import connect  # noqa: PLC0415 - as above
    from perfgate.github.events import find_sha  # noqa: PLC0415
    from perfgate.github.publisher import require_head  # noqa: PLC0415
    from perfgate.github.settings import load_settings  # noqa: PLC0415

    if options["ref"] != MAIN:
        raise InputError(f"--ref {options['ref'][:80]!r}: the workflow runs from {MAIN} only; start it from there")
    head = find_sha({"head_sha": options["head_sha"]}, "head_sha")
    jobs = [
        job
        for job in load_settings(settings).list_jobs()
        if options["hardware"] in ("", job["hardware"]) and options["scenario"] in ("", job["scenario"])
    ]
    if not jobs:
        raise InputError("--hardware, --only: the settings have no such machine with such a scenario")
    github, place = connect(), build_place(options["repository"], options["pr"])
    require_head(github, place, head)
    base = find_sha(github.get(f"/repos/{place.repository}/pulls/{place.pull_request}"), "base.sha")
    write_plan({"head_sha": head, "base_sha": base, "pull_request": str(options["pr"]), "matrix": format_matrix(jobs)})
    return 0


@command.command(name="command")
@EVENT
@SETTINGS
@click.option("--workflow", default="perfgate-dispatch.yml", show_default=True)
def obey(event: Path, settings: Path, workflow: str) -> int:
    """Start the measurement that a comment asks for, if its author may write to the repository."""
    from perfgate.github.client import connect  # noqa: PLC0415 - as above
    from perfgate.github.commands import start  # noqa: PLC0415
    from perfgate.github.events import read_event  # noqa: PLC0415
    from perfgate.github.settings import load_settings  # noqa: PLC0415

    try:
        click.echo(start(connect(), read_event(event), load_settings(settings), workflow))
    except GitHubError as error:
        raise InputError(f"nothing was started: {error}") from None
    return 0
