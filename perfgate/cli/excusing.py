"""Commit statuses without a comment: for what nobody asked to measure, and for commits of the merge queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perfgate.cli.judging import Court
    from perfgate.github.runs import Run
    from perfgate.github.settings import Settings


def excuse_all(run: Run, payload: dict[str, Any], known: Settings, style: str) -> list[dict[str, str]]:
    """Say of each machine that it was not asked for, so that a branch may require its status of every pull request."""
    return _excuse(run, set(known.hardware), style) if payload.get("action") == "completed" else []


def _excuse(run: Run, hardware: set[str], style: str) -> list[dict[str, str]]:
    from perfgate.cli.publishing import build_place  # noqa: PLC0415 - these cost what `perfgate --help` must not pay
    from perfgate.github.client import connect  # noqa: PLC0415
    from perfgate.github.publisher import excuse  # noqa: PLC0415

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
    from perfgate.cli.publishing import build_place, build_section, judge_all  # noqa: PLC0415 - as above
    from perfgate.github.client import connect  # noqa: PLC0415
    from perfgate.github.publisher import set_status  # noqa: PLC0415
    from perfgate.github.runs import collect  # noqa: PLC0415
    from perfgate.github.states import State  # noqa: PLC0415

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
