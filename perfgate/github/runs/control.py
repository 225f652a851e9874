"""Runs that are started, ended or run again: what takes the right to write to Actions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfgate.errors import GitHubConflictError, GitHubError
from perfgate.github.client import PER_PAGE, GitHub
from perfgate.github.runs.jobs import JOB, Jobs
from perfgate.github.runs.run import WorkflowRun
from perfgate.storage.schema import find

DISPATCH, PULL = "perfgate-dispatch.yml", "perfgate-pr.yml"
"""The workflows that measure on request and by event; their files are called so in every repository."""

MOST_CANCELLED = 6
"""Each is a request, and an event may make twelve. What is left measures for nothing: its result is not shown."""

_EVENT = "workflow_dispatch"
_TITLE = re.compile(r"perfgate (?P<task>measure|compare|bisect) #(?P<pull>[1-9]\d{0,8}) (?P<sha>[0-9a-f]{40})")


class Task(StrEnum):
    """What a dispatched run does: measure the head of a pull request, compare two commits, or search for the slow one."""

    MEASURE = "measure"
    COMPARE = "compare"
    BISECT = "bisect"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedRun:
    """A dispatched run read from its title: GitHub does not return the inputs."""

    run_id: int
    task: Task
    pull_request: int
    head_sha: str


def list_dispatched(github: GitHub, repository: str, pull_request: int) -> tuple[DispatchedRun, ...]:
    """The unfinished dispatched runs of a pull request, among the newest hundred: one request."""
    read = (read_run(run) for run in _list_unfinished(github, repository, DISPATCH, event=_EVENT))
    return tuple(run for run in read if run is not None and run.pull_request == pull_request)


def list_measuring(github: GitHub, repository: str, pull_request: int, head_sha: str) -> set[int]:
    """The unfinished runs that measure for a pull request: those that its events started for its head, and the dispatched ones.

    GitHub says what they are. A status names a run too, and an account that may set one can name any run of the repository.
    """
    by_event = _list_unfinished(github, repository, PULL, event="pull_request", head_sha=head_sha)
    started = {number for run in by_event if isinstance(number := run.get("id"), int)}
    return started | {run.run_id for run in list_dispatched(github, repository, pull_request)}


def _list_unfinished(github: GitHub, repository: str, file: str, **query: str) -> tuple[Mapping[str, object], ...]:
    """The runs of a workflow that have not ended, among the newest hundred: one request."""
    answer = github.get(f"/repos/{repository}/actions/workflows/{file}/runs", per_page=PER_PAGE, **query)
    runs = answer.get("workflow_runs")
    return tuple(
        run for run in (runs if isinstance(runs, list) else ()) if isinstance(run, dict) and run.get("status") != "completed"
    )


def read_run(run: Mapping[str, object]) -> DispatchedRun | None:
    """What a run measures by its title; None for one that was not dispatched, as of the merge queue."""
    match = _TITLE.fullmatch(str(run.get("display_title")))
    number = run.get("id")
    if match is None or run.get("event") != _EVENT or not isinstance(number, int):
        return None
    return DispatchedRun(run_id=number, task=Task(match["task"]), pull_request=int(match["pull"]), head_sha=match["sha"])


def cancel_overtaken(github: GitHub, repository: str, pull_request: int, head_sha: str) -> tuple[int, ...]:
    """Cancel what measures an older head of a pull request on request; return the runs.

    A comparison names its commits itself, so no push overtakes it. Runs of the pull request workflow, the merge queue's among
    them, are GitHub's own concurrency's to cancel.
    """
    runs = list_dispatched(github, repository, pull_request)
    older = [run.run_id for run in runs if run.task is not Task.COMPARE and run.head_sha != head_sha]
    return cancel_runs(github, repository, older)


def cancel_runs(github: GitHub, repository: str, runs: Iterable[int]) -> tuple[int, ...]:
    """Cancel runs, the oldest first and MOST_CANCELLED at most; return those that had not ended meanwhile."""
    return tuple(run for run in sorted(set(runs))[:MOST_CANCELLED] if _cancel(github, repository, run))


def _cancel(github: GitHub, repository: str, run: int) -> bool:
    try:
        github.send("POST", f"/repos/{repository}/actions/runs/{run}/cancel")
    except GitHubConflictError:
        return False
    return True


def start(github: GitHub, repository: str, branch: str, inputs: Mapping[str, str]) -> None:
    """Start the dispatch workflow as it stands on `branch`, the default one. Not sent twice: each would measure."""
    path = f"/repos/{repository}/actions/workflows/{DISPATCH}/dispatches"
    github.send("POST", path, {"ref": branch, "inputs": dict(inputs)}, is_repeatable=False)


def retry_died(github: GitHub, run: WorkflowRun, jobs: Jobs, died: Sequence[str]) -> bool:
    """Run the failed jobs of a run again where all measuring jobs that failed are `died`; return whether it was done.

    GitHub counts attempts, which is the record: only the first is ever followed by another one. Jobs that ended well are kept.
    """
    failed = {name for name, job in jobs.items() if JOB.fullmatch(name) and job.get("conclusion") == "failure"}
    if run.run_attempt != 1 or not died or failed != set(died):
        return False
    try:
        github.send("POST", f"/repos/{run.repository}/actions/runs/{run.run_id}/rerun-failed-jobs", is_repeatable=False)
    except GitHubError:
        return False
    return True


def is_wanted(github: GitHub, repository: str, run: Mapping[str, object]) -> bool:
    """Whether a dispatched run's result would still be shown: its pull request is open, and at the commit that it measures.

    A comparison names its commits itself. A run without perfgate's title belongs to none.
    """
    if (found := read_run(run)) is None:
        return False
    pull = github.get(f"/repos/{repository}/pulls/{found.pull_request}")
    is_head = found.task is Task.COMPARE or find(pull, "head.sha") == found.head_sha
    return bool(find(pull, "state") == "open" and is_head)
