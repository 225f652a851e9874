"""Steps that judge what jobs handed over, and speak to nobody: the required check, and what a night teaches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click

from perfgate.cli.ci.handoff import build_subject
from perfgate.cli.ci.steps import SETTINGS, add_judging_options, build_judging, left_option
from perfgate.cli.output import FILE, add_format_option, print_json, print_result, say
from perfgate.cli.sections import SectionCommand, subject_option
from perfgate.errors import InputError
from perfgate.github.asked.acceptance import find_acceptances, is_accepted
from perfgate.github.client import connect, find_server
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.comment.target import Comments, CommentTarget, find_target
from perfgate.github.events import find_repository, find_sha
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.github.judging import NOTHING_TO_JUDGE, JobVerdict, judge_job
from perfgate.github.night.learning import learn_from
from perfgate.github.outputs import add_summary
from perfgate.github.settings import parse_jobs
from perfgate.github.statuses import fetch_statuses


@click.command(cls=SectionCommand)
@left_option("--action", type=click.Choice(["run", "skip", "await", "refuse"]), required=True, help="What `plan` decided.")
@left_option("--result", required=True, metavar="RESULT", help="Result of the measuring jobs: success, skipped, ...")
@left_option("--matrix", required=True, metavar="JSON", help="The jobs that `plan` wrote.")
@left_option("--artifacts", type=FILE, required=True, metavar="DIR", help="Folder with one folder per artifact.")
@subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@subject_option("--pr", type=click.IntRange(min=0), required=True, metavar="NUMBER", help="The pull request; 0 for none.")
@subject_option("--head-sha", required=True, metavar="SHA")
@subject_option("--base-sha", required=True, metavar="SHA", help="The commit of the base.")
@subject_option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID")
@subject_option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_judging_options
@SETTINGS
@add_format_option
def verdict(action: str, result: str, matrix: str, artifacts: Path, settings: Path, style: str, **options: Any) -> int:
    """The required check: passes if nothing was found slower, or if no measurement was requested.

    Needs no token. The exit code is the worst verdict's; 3 if a job left nothing to judge. With --format json the annotations
    for GitHub go to standard error, where GitHub reads them too.
    """
    if action != "run":
        return pass_unmeasured(action, {**options, "result": result}, style)
    wanted, base_sha = parse_jobs(matrix), find_sha(options, "base_sha")
    codes = [0 if wanted and result == "success" else 3]
    shown: list[Mapping[str, Any]] = []
    read_comments = cache(lambda: read_conversation(find_target(options["repository"], options["pr"])))
    for job in wanted:
        subject = build_subject({**options, "hardware": job.hardware})
        reproduction = Reproduction(subject=subject, base_sha=base_sha, server_url=find_server())
        found = judge_job(job, artifacts, reproduction, build_judging(options, settings))
        if found.problem:
            say(f"perfgate: {found.problem}", err=True)
        else:
            add_summary(found.summary)
        for line in found.annotations:
            say(line, err=style == "json")
        is_excused = 1 in found.exit_codes and options["pr"] and is_excused_by(read_comments(), subject, found)
        if is_excused:
            say(f"{job.hardware} {job.scenario}: accepted by a maintainer for this commit", err=style == "json")
        codes += [0 if is_excused and code == 1 else code for code in found.exit_codes]
        shown += ({**facts, "outcome": "accepted"} if is_excused else facts for facts in found.facts)
    if style == "json":
        print_json({"action": action, "jobs": shown})
    return 1 if 1 in codes else max(codes)


def read_conversation(target: CommentTarget) -> Comments:
    """The comments of a pull request. None without a token: then nothing is accepted, and the verdict stands."""
    return tuple(connect().list_all(target.comments)) if os.environ.get("GITHUB_TOKEN") else ()


def is_excused_by(comments: Comments, subject: HandoffSubject, found: JobVerdict) -> bool:
    """Whether a maintainer accepted, in a comment of the bot, what a job found lost."""
    bot = find_target(subject.repository, subject.pull_request).bot
    return is_accepted(found.cases, find_acceptances(comments, bot, subject.head_sha, subject.hardware), found.choices)


def pass_unmeasured(action: str, options: Mapping[str, Any], style: str) -> int:
    """End the check of a commit that this run did not measure, unless an earlier run found it slower.

    Taking the label away, or another pull request of the same commit, must not turn the check green again.
    """
    if options["result"] != "skipped":
        raise InputError(f"--result {options['result'][:20]}: no measurement was requested, but jobs ran")
    if action == "refuse":
        say("perfgate: refused: pull requests into this base branch are not measured; remove the label", err=True)
        return NOTHING_TO_JUDGE
    slower: tuple[str, ...] = ()
    if options["pr"]:
        standing = fetch_statuses(connect(), find_repository(options, "repository"), find_sha(options, "head_sha"))
        slower = tuple(sorted(name for name, status in standing.items() if status.state == "failure"))
    said = f"{', '.join(slower)}: slower, as measured before" if slower else "nothing was measured, so nothing is said"
    print_result(style, {"action": action, "jobs": [], "slower": slower}, f"{action}: {said}")
    return 1 if slower else 0


@click.command()
@click.option("--matrix", required=True, metavar="JSON", help="The jobs that `jobs` wrote.")
@click.option("--artifacts", type=FILE, required=True, metavar="DIR", help="Folder with one folder per artifact.")
@click.option("--to", "target", required=True, type=FILE, metavar="DIR", help="Folder of baselines to add to.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to judge by; repeatable.")
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--head-sha", required=True, metavar="SHA", help="The commit of the main branch that both arms ran.")
@click.option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID")
@click.option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_format_option
def learn(matrix: str, artifacts: Path, target: Path, scenarios: tuple[str, ...], style: str, **options: Any) -> int:
    """Add measurements of the main branch to stored baselines, for review by a person.

    A machine without a measurement, or with a slower one, is left out with a warning on the run: only a person may accept a
    slower level, with a reason. With --format json all other output goes to standard error.
    """
    subjects = ((job, build_subject({**options, "pr": 0, "hardware": job.hardware})) for job in parse_jobs(matrix))
    shown = []
    for lesson in learn_from(subjects, artifacts, scenarios, target):
        say(lesson.message, err=style == "json")
        shown.append(lesson.facts)
    if style == "json":
        print_json({"jobs": shown})
    return 0
