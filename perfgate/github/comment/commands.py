"""`/perfgate run`: a comment that starts a measurement, of an author who may write, for the commit that they have read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfgate.errors import GitHubNotFoundError, InputError, StaleError
from perfgate.github.client import GitHub
from perfgate.github.events import find, find_number, find_repository, find_sha, is_fork, parse_command
from perfgate.github.planning import require_open
from perfgate.github.settings import Settings

WRITERS = {"admin", "write"}
"""GitHub's coarse permissions; maintainers count as writers there."""


def start_measurement(github: GitHub, payload: Mapping[str, Any], settings: Settings, workflow: str) -> str:
    """Start the dispatch workflow on the default branch and say what was started.

    Raise InputError for a command, author or commit that does not do. For a fork the commit is part of the command: its
    author has read that commit, and a push in between makes the command void.
    """
    repository, number = find_repository(payload, "repository.full_name"), find_number(payload, "issue.number")
    names = tuple(sorted(settings.hardware))
    scenarios = tuple(sorted({job.scenario for job in settings.list_jobs()}))
    command = parse_command(str(find(payload, "comment.body") or ""), names, scenarios)
    if find(payload, "action") != "created" or not find(payload, "issue.pull_request") or command is None:
        return "no command"
    require_writer(github, repository, find(payload, "comment.user.login"))
    pull = github.get(f"/repos/{repository}/pulls/{number}")
    require_open(pull, settings)
    head = find_sha(pull, "head.sha")
    if is_fork(pull) and not command.sha:
        raise InputError(f"the code comes from a fork: read it, then name the commit, `/perfgate run {head}`")
    if command.sha not in ("", head):
        raise StaleError(f"the pull request is at {head}, not at {command.sha}; read what was pushed")
    inputs = {"pr": str(number), "head_sha": head, "hardware": command.hardware, "scenario": command.scenario}
    branch = str(find(payload, "repository.default_branch"))
    github.send("POST", f"/repos/{repository}/actions/workflows/{workflow}/dispatches", {"ref": branch, "inputs": inputs})
    return f"started {command.hardware or 'every machine'}, {command.scenario or 'every scenario'} at {head}"


def require_writer(github: GitHub, repository: str, login: Any) -> None:
    """Ask GitHub what the author may do; what the event says of them (`author_association`) is not a permission."""
    if not isinstance(login, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", login):
        raise InputError("the comment has no author that could be asked about")
    try:
        permission = github.get(f"/repos/{repository}/collaborators/{login}/permission").get("permission")
    except GitHubNotFoundError:
        permission = "none"
    if permission not in WRITERS:
        raise InputError(f"{login} may not start measurements: that takes write access, theirs is {permission}")
