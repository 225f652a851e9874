"""`perfgate github publish` and `report`: the two steps that hold a token which may write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.handoff import add_subject_options, build_subject
from perfgate.cli.judging import EVENT, FILE, SETTINGS, add_court_options, build_court, open_and_judge
from perfgate.errors import HandoffError, InputError, StaleError

if TYPE_CHECKING:
    from perfgate.cli.judging import Court, Judged
    from perfgate.github.handoff import Subject
    from perfgate.github.publisher import Place
    from perfgate.github.runs import Finding, Run
    from perfgate.github.sections import Section
    from perfgate.github.settings import Settings
    from perfgate.github.states import State


@click.command()
@click.argument("artifacts", metavar="[ARTIFACT]...", nargs=-1, type=FILE)
@click.option("--state", type=click.Choice(["planned", "running", "invalid", "sick-runner"]), help="Say this; no artifact.")
@add_subject_options
@add_court_options
@SETTINGS
def publish(artifacts: tuple[Path, ...], state: str | None, settings: Path, **options: Any) -> int:
    """Judge hand-offs and say the result on the pull request: comment and commit status. Or say --state without numbers."""
    from perfgate.github.outputs import add_summary  # noqa: PLC0415 - as above
    from perfgate.github.states import State, combine  # noqa: PLC0415

    if bool(artifacts) == bool(state):
        raise InputError("give either artifacts or --state, for a result has one source")
    subject = build_subject(options)
    judged = open_and_judge(artifacts, subject, build_court(options, settings)) if artifacts else ()
    found = State(state) if state else combine([one.verdict.outcome for one in judged])
    body = "\n\n".join(one.markdown for one in judged)
    click.echo(say(build_place(subject.repository, subject.pull_request), build_section(subject, found, body)))
    if body:
        add_summary(body)
    return 0


def build_place(repository: str, pull_request: int) -> Place:
    """Where to speak: the server and the bot's name may differ on GitHub Enterprise and for an app of one's own."""
    from perfgate.github.publisher import BOT, Place  # noqa: PLC0415 - as above

    return Place(
        repository=repository,
        pull_request=pull_request,
        server_url=os.environ.get("GITHUB_SERVER_URL", "https://github.com"),
        bot=os.environ.get("PERFGATE_BOT", BOT),
    )


def build_section(subject: Subject, state: State, body: str) -> Section:
    """The section of one machine, dated now."""
    from perfgate.github.sections import Entry, Section  # noqa: PLC0415 - as above

    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = Entry(head_sha=subject.head_sha, state=state, run_id=subject.run_id, run_attempt=subject.run_attempt, at=at)
    return Section(hardware=subject.hardware, entry=entry, body=body)


def say(place: Place, section: Section) -> str:
    """Publish with the job's token and return the comment's address."""
    from perfgate.github.client import connect  # noqa: PLC0415 - as above
    from perfgate.github.publisher import publish as put  # noqa: PLC0415

    return put(connect(), place, section)


@click.command()
@EVENT
@add_court_options
@SETTINGS
def report(event: Path, settings: Path, **options: Any) -> int:
    """Say on the pull request what became of a run of the pull request workflow, from its `workflow_run` event.

    A run of a fork is never read, as its workflow file is the fork's: the comment then tells a maintainer how to start one.
    """
    from perfgate.github.client import connect  # noqa: PLC0415 - as above
    from perfgate.github.events import Action, plan_pull, read_event  # noqa: PLC0415
    from perfgate.github.runs import identify  # noqa: PLC0415
    from perfgate.github.settings import load_settings  # noqa: PLC0415

    payload, known = read_event(event), load_settings(settings)
    run = identify(connect(), payload)
    found = plan_pull(run.pull, known.label)
    if found.action is Action.SKIP:
        click.echo(found.reason)
        return 0
    place = build_place(run.repository, found.pull_request)
    court = build_court(options, settings)
    for section in _build_sections(run, payload, known, court if found.action is Action.RUN else None):
        try:
            click.echo(say(place, section))
        except StaleError as error:
            click.echo(f"left as it is: {error}")
    return 0


def _build_sections(run: Run, payload: dict[str, Any], known: Settings, court: Court | None) -> Iterator[Section]:
    """Without a court nothing may be judged: the run belongs to a fork."""
    from perfgate.github.client import connect  # noqa: PLC0415 - as above
    from perfgate.github.runs import collect  # noqa: PLC0415
    from perfgate.github.states import State  # noqa: PLC0415

    if court is None:
        for hardware in sorted(known.hardware):
            how = f"    /perfgate run {hardware} {run.head_sha}"
            yield build_section(
                run.subject(hardware), State.AWAITING, f"A maintainer who has read this commit starts it with\n\n{how}"
            )
    elif payload.get("action") in {"requested", "in_progress"}:
        state = State.PLANNED if payload["action"] == "requested" else State.RUNNING
        for hardware in sorted(known.hardware):
            yield build_section(run.subject(hardware), state, "")
    else:
        for finding in collect(connect(), run, known):
            yield _judge_finding(run.subject(finding.hardware), finding, court)


def _judge_finding(subject: Subject, finding: Finding, court: Court) -> Section:
    """What is missing outweighs what is there, except a regression that was found."""
    from perfgate.cli.judging import judge_handoffs  # noqa: PLC0415 - as above
    from perfgate.github.states import State, combine  # noqa: PLC0415
    from perfgate.report.escape import markdown  # noqa: PLC0415

    remarks = list(finding.remarks)
    judged: tuple[Judged, ...] = ()
    try:
        judged = judge_handoffs(finding.handoffs, court)
    except HandoffError as error:
        remarks.append(str(error))
    state = combine([one.verdict.outcome for one in judged])
    if remarks and state is not State.REGRESSION:
        state = finding.state or State.INVALID
    lines = [f"- {markdown(remark)}" for remark in remarks]
    return build_section(subject, state, "\n\n".join(["\n".join(lines), *(one.markdown for one in judged)]).strip())
