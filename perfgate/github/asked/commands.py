"""`/perfgate ...` in a comment: who may say it, what it does, and the answer on the pull request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from perfgate.errors import GitHubError, GitHubNotFoundError, InputError, StaleError
from perfgate.github.asked.acceptance import Acceptance
from perfgate.github.asked.request import MAINTAINERS, WRITERS, CommandRequest
from perfgate.github.asked.starting import bisect, cancel, compare, run
from perfgate.github.asked.words import parse_command
from perfgate.github.client import GitHub
from perfgate.github.comment.marks import find_address
from perfgate.github.comment.publisher import find_comments
from perfgate.github.comment.sections import ResultEntry, parse
from perfgate.github.comment.states import State
from perfgate.github.comment.target import CommentTarget, find_target
from perfgate.github.events import find_number, find_repository
from perfgate.github.planning import require_open
from perfgate.github.settings import Settings
from perfgate.github.statuses import CommitStatus, send_status
from perfgate.report.escape import markdown
from perfgate.storage.schema import find

CHECK = "perfgate verdict"
"""The required check; the workflow names it too."""


def answer_comment(github: GitHub, payload: Mapping[str, Any], settings: Settings, now: str) -> str:
    """Do what a comment asks for, and answer with a reaction and a comment; return the answer.

    Raise InputError for a command, author or commit that does not do, and GitHubError where GitHub refuses a step, after the
    author was told. An author without any right gets a reaction alone: strangers must not make the bot write.
    """
    repository, number = find_repository(payload, "repository.full_name"), find_number(payload, "issue.number")
    body = str(find(payload, "comment.body") or "")
    is_new = find(payload, "action") == "created" and bool(find(payload, "issue.pull_request"))
    if not is_new or not body.strip().startswith("/perfgate"):
        return "no command"
    target, comment, is_writer = find_target(repository, number), find(payload, "comment.id"), False
    try:
        role = find_role(github, repository, login := _read_login(payload))
        is_writer = role in WRITERS
        said = _carry_out(github, target, payload, settings, role, login, now)
    except (InputError, GitHubError) as error:
        _react(github, repository, comment, "confused")
        if is_writer:
            with suppress(GitHubError):
                _reply(github, target, f"Refused: {markdown(str(error))}")
        raise
    _react(github, repository, comment, "+1")
    try:
        _reply(github, target, said)
    except GitHubError as error:
        return f"{said} The pull request does not say so: {error}"
    return said


def _carry_out(  # noqa: PLR0913, PLR0917 - what an event brings, each of another kind
    github: GitHub,
    target: CommentTarget,
    payload: Mapping[str, Any],
    settings: Settings,
    role: str,
    login: str,
    now: str,
) -> str:
    names = tuple(sorted(settings.hardware))
    scenarios = tuple(sorted({job.scenario for job in settings.list_jobs()}))
    if role not in WRITERS:
        raise InputError(f"{login} may not start measurements: that takes write access, theirs is {role}")
    command = parse_command(str(find(payload, "comment.body")), names, scenarios)
    if command is None:
        raise InputError("no such command")
    act, roles = _ACTS[command.verb]
    if role not in roles:
        raise InputError(f"{command.verb} takes one of the roles {', '.join(sorted(roles))}, and {login} has {role}")
    pull = github.get(f"/repos/{target.repository}/pulls/{target.pull_request}")
    require_open(pull, settings)
    request = CommandRequest(
        github=github,
        target=target,
        pull=pull,
        command=command,
        settings=settings,
        branch=str(find(payload, "repository.default_branch")),
        login=login,
        now=now,
    )
    if command.sha not in ("", request.head):
        raise StaleError(f"the pull request is at {request.head}, not at {command.sha}; read what was pushed")
    return act(request)


def _read_login(payload: Mapping[str, Any]) -> str:
    login = find(payload, "comment.user.login")
    if not isinstance(login, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", login):
        raise InputError("the comment has no author that could be asked about")
    return login


def find_role(github: GitHub, repository: str, login: str) -> str:
    """Ask GitHub what the author may do; what the event says of them (`author_association`) is not a permission."""
    try:
        answer = github.get(f"/repos/{repository}/collaborators/{login}/permission")
    except GitHubNotFoundError:
        return "none"
    role, permission = str(answer.get("role_name")), str(answer.get("permission"))
    return role if role in WRITERS and permission in WRITERS else permission


def _explain(request: CommandRequest) -> str:
    """Say what stands on the head for each machine, and where it was measured."""
    standing = request.fetch_standing()
    lines = [
        f"- {name}: {status.state}, {markdown(status.description)}{_link_run(request, status)}"
        for name, status in standing.items()
    ]
    told = lines or ["- nothing was measured; set the label `perfgate`, or write `/perfgate run`"]
    shown = find_comments(request.github, request.target)
    more = f"\n\nEverything in full: [comment]({find_address(shown[0])})." if shown else ""
    return f"Commit {request.head[:12]}:\n\n" + "\n".join(told) + more


def _link_run(request: CommandRequest, status: CommitStatus) -> str:
    """Where it was measured. An account that may set a status writes its address: only numbers are taken from it."""
    run, attempt = status.order
    return f" ([run]({request.target.runs_url}/{run}/attempts/{attempt}))" if run else ""


def _accept(request: CommandRequest) -> str:
    """Record each loss that stands on the head, set its status, and let the required check be asked again."""
    failing = {name: status for name, status in request.fetch_standing().items() if status.state == "failure"}
    entries = _read_entries(request)
    records = []
    for name, status in failing.items():
        entry = entries.get(name)
        if entry is None or (entry.head_sha, entry.order) != (request.head, status.order) or not entry.losses:
            raise InputError(
                f"{name}: the comment does not say what was lost in the run that failed; write `/perfgate rerun {name}`"
            )
        records.append((status, _build(request, name, entry)))
    if not records:
        raise InputError("no machine found this commit slower, so there is nothing to accept")
    for status, record in records:
        request.github.send("POST", request.target.comments, {"body": record.render()}, is_repeatable=False)
        said = f"accepted by {request.login}: {request.command.reason}"
        accepted = CommitStatus(context=status.context, state=State.ACCEPTED.commit_status, description=said, url=status.url)
        send_status(request.github, request.target.repository, request.head, accepted)
    asked = [_ask_again(request, run) for run in sorted({status.order[0] for status, _ in records})]
    names = ", ".join(record.hardware for _, record in records)
    check = "The required check is asked again." if any(asked) else "The required check did not fail for it."
    return f"Accepted for {names} at commit {request.head[:12]}. {check}"


def _read_entries(request: CommandRequest) -> dict[str, ResultEntry]:
    shown = find_comments(request.github, request.target)
    return {name: section.entry for name, section in parse(shown[0]["body"]).items()} if len(shown) == 1 else {}


def _build(request: CommandRequest, hardware: str, entry: ResultEntry) -> Acceptance:
    return Acceptance(
        head_sha=request.head,
        hardware=hardware,
        losses=entry.losses,
        by=request.login,
        at=request.now,
        reason=request.command.reason,
    )


def _ask_again(request: CommandRequest, run: int) -> bool:
    """Run the required check of a run again, if it failed there; a dispatched run has none."""
    place = f"/repos/{request.target.repository}/actions"
    for job in request.github.list_all(f"{place}/runs/{run}/jobs", filter="latest"):
        if str(job.get("name")).rpartition(" / ")[2] == CHECK and job.get("conclusion") == "failure":
            request.github.send("POST", f"{place}/jobs/{find_number(job, 'id')}/rerun")
            return True
    return False


_ACTS: Mapping[str, tuple[Callable[[CommandRequest], str], set[str]]] = {
    "run": (run, WRITERS),
    "rerun": (run, WRITERS),
    "compare": (compare, WRITERS),
    "bisect": (bisect, WRITERS),
    "cancel": (cancel, WRITERS),
    "explain": (_explain, WRITERS),
    "accept": (_accept, MAINTAINERS),
}


def _react(github: GitHub, repository: str, comment: Any, content: str) -> None:
    """A reaction that cannot be set must not undo what was done."""
    if not isinstance(comment, int):
        return
    try:
        github.send("POST", f"/repos/{repository}/issues/comments/{comment}/reactions", {"content": content})
    except GitHubError:
        return


def _reply(github: GitHub, target: CommentTarget, text: str) -> None:
    github.send("POST", target.comments, {"body": text}, is_repeatable=False)
