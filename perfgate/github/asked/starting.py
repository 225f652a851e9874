"""Commands that start a measurement on request, and the one that ends it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from perfgate.errors import GitHubNotFoundError, InputError
from perfgate.github.asked.request import CommandRequest
from perfgate.github.asked.words import is_sha
from perfgate.github.events import fetch_branch_point, find_sha, is_fork
from perfgate.github.planning import choose_jobs, require_searchable
from perfgate.github.runs.control import DISPATCH, MOST_CANCELLED, Task, cancel_overtaken, cancel_runs, list_measuring, start


def run(request: CommandRequest) -> str:
    """Measure the head on the default branch's workflow, and end what measures an older one.

    For a fork the commit is part of the command: its author has read that commit, and a push in between makes the command void.
    """
    command = request.command
    if is_fork(request.pull) and not command.sha:
        raise InputError(f"the code comes from a fork: read it, then name the commit, `/perfgate run {request.head}`")
    what = f"{command.hardware or 'every machine'}, {command.scenario or 'every scenario'} at {request.head}"
    return _start(request, Task.MEASURE, request.head, f"Started {what}")


def compare(request: CommandRequest) -> str:
    """Measure two commits against each other. The result is a comment, never a status, so no easier base passes a check."""
    command = request.command
    choose_jobs(request.settings, command.hardware, command.scenario)
    base, candidate = (_resolve(request, ref) for ref in command.refs)
    if base == candidate:
        raise InputError(f"{command.refs[0]} and {command.refs[1]} are the same commit, {base}")
    said = f"Started a comparison of {candidate} with {base}, the base"
    return _start(request, Task.COMPARE, candidate, said, base_sha=base)


def bisect(request: CommandRequest) -> str:
    """Search the commits of the pull request for the slow one, on one machine with one scenario.

    Not of a fork: each commit on the way would run, and a reader of the change sees the last one alone.
    """
    command = request.command
    job = require_searchable(request.pull, choose_jobs(request.settings, command.hardware, command.scenario))
    point = fetch_branch_point(request.github, request.pull)
    if point.commits < 2:
        raise InputError(f"{request.head} is the only commit since {point.merge_base}, so there is nothing to search")
    commits = f"{point.commits} commits, from {point.merge_base} to {request.head}"
    said = f"Started a search of {commits}, on {job.hardware}, {job.scenario}"
    return _start(request, Task.BISECT, request.head, said)


def cancel(request: CommandRequest) -> str:
    """Cancel what measures for this pull request; of one machine, the runs that its pending status on the head names."""
    repository = request.target.repository
    runs = list_measuring(request.github, repository, request.number, request.head)
    if request.command.hardware:
        runs &= {status.order[0] for status in request.fetch_standing().values() if status.state == "pending"}
    if not runs:
        raise InputError("nothing of this commit is being measured")
    ended = cancel_runs(request.github, repository, runs)
    if not ended:
        raise InputError("what was being measured has ended meanwhile")
    left = " There are more; write it again." if len(runs) > MOST_CANCELLED else ""
    return "Cancelled: " + ", ".join(f"[run {run}]({request.target.runs_url}/{run})" for run in ended) + f".{left}"


def _start(request: CommandRequest, task: Task, head_sha: str, said: str, **more: str) -> str:
    """Dispatch, in the name of who asks: a token of a job has none, and GPU-minutes are on a person's account."""
    repository, command = request.target.repository, request.command
    ended = cancel_overtaken(request.github, repository, request.number, request.head) if task is Task.MEASURE else ()
    inputs = {
        "pr": str(request.number),
        "head_sha": head_sha,
        "hardware": command.hardware,
        "scenario": command.scenario,
        "task": task.value,
        "base_sha": "",
        "asked_by": request.login,
    }
    start(request.github, repository, request.branch, {**inputs, **more})
    more_said = f" Cancelled, as it measured an older head: {', '.join(map(str, ended))}." if ended else ""
    return f"{said}: [runs]({request.target.server_url}/{repository}/actions/workflows/{DISPATCH}).{more_said}"


def _resolve(request: CommandRequest, ref: str) -> str:
    """The commit of a branch or tag of the repository, or a commit by all its digits. Raise InputError where there is none.

    A pull request's own ref is neither, and so names no fork's code that was not read.
    """
    place = f"/repos/{request.target.repository}/commits"
    for path in (ref,) if is_sha(ref) else (f"heads/{ref}", f"tags/{ref}"):
        try:
            answer: Any = request.github.get(f"{place}/{quote(path)}", per_page=1)
        except GitHubNotFoundError:
            continue
        found = find_sha({"commit": answer}, "commit.sha")
        if is_sha(ref) and found != ref:
            raise InputError(f"{ref}: GitHub has another commit of that name, {found}")
        return found
    raise InputError(f"{ref}: is no commit with all its digits, and no branch or tag of {request.target.repository}")
