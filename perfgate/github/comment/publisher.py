"""Say a result on a pull request: one comment that is edited, never repeated, and one commit status a hardware."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.errors import GitHubConflictError, GitHubError, GitHubNotFoundError, GitHubUnavailableError, StaleError
from perfgate.github.client import GitHub, find_server
from perfgate.github.comment.sections import MARK, MachineSection, describe, merge, parse, put, render

ROUNDS = 6
BOT = "github-actions[bot]"
NOT_ASKED = "not asked for, so nothing was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentTarget:
    """Where to speak, and as whom. `settle_s` is how long a writer waits before it looks whether another overwrote it.

    GitHub cannot edit a comment only if it is unchanged, so two writers at once may lose a section. Workflows keep one writer a
    pull request; where that fails, each writer looks again and repeats what was lost.
    """

    repository: str
    pull_request: int
    server_url: str = "https://github.com"
    bot: str = BOT
    settle_s: float = 2.0

    @property
    def runs_url(self) -> str:
        """The address below which the runs of the repository are."""
        return f"{self.server_url}/{self.repository}/actions/runs"

    @property
    def comments(self) -> str:
        """The path of the pull request's comments."""
        return f"/repos/{self.repository}/issues/{self.pull_request}/comments"

    def comment(self, number: int) -> str:
        """The path of one comment."""
        return f"/repos/{self.repository}/issues/comments/{number}"


def find_target(repository: str, pull_request: int, environment: Mapping[str, str] = os.environ) -> CommentTarget:
    """Where this job speaks: the server and the bot's name may differ on GitHub Enterprise and for an app of one's own."""
    return CommentTarget(
        repository=repository,
        pull_request=pull_request,
        server_url=find_server(environment),
        bot=environment.get("PERFGATE_BOT", BOT),
    )


def publish(github: GitHub, target: CommentTarget, section: MachineSection) -> str:
    """Show `section` on the pull request, return the comment's address. Raise StaleError for a commit that is not its head."""
    require_head(github, target, section.entry.head_sha)
    url = upsert(github, target, section)
    set_status(github, target, section, url)
    return url


def require_head(github: GitHub, target: CommentTarget, head_sha: str) -> None:
    """A result of an older head says nothing about what would be merged."""
    head = github.get(f"/repos/{target.repository}/pulls/{target.pull_request}")["head"]["sha"]
    if head != head_sha:
        raise StaleError(
            f"pull request {target.pull_request} is at {head} by now, and this result is of {head_sha}; measure the new commit"
        )


def upsert(github: GitHub, target: CommentTarget, section: MachineSection) -> str:
    """Create or edit the comment until it holds `section`, and there is only one."""
    for attempt in range(ROUNDS):
        found = find_comments(github, target)
        if _is_shown(found, section):
            return str(found[0]["html_url"])
        try:
            _write(github, target, section, found)
        except (GitHubConflictError, GitHubNotFoundError, GitHubUnavailableError):
            # The comment was edited or deleted meanwhile, or the gateway broke after the deed: look again.
            github.sleep(target.settle_s)
            continue
        # Two writers that keep pace would overwrite each other for ever.
        github.sleep(target.settle_s * (1 + attempt * random.random()))  # noqa: S311 - it spreads writers, it hides nothing
    found = find_comments(github, target)
    if _is_shown(found, section):
        return str(found[0]["html_url"])
    raise GitHubError(
        f"the comment of pull request {target.pull_request} did not keep its section after {ROUNDS} writes; run again"
    )


def find_comments(github: GitHub, target: CommentTarget) -> list[dict[str, Any]]:
    """Find perfgate's own comments, oldest first: they begin with the mark, and the bot wrote them. The mark proves nothing."""
    own = (comment for comment in github.list_all(target.comments) if _is_own(comment, target.bot))
    return sorted(own, key=lambda comment: int(comment["id"]))


def _is_own(comment: dict[str, Any], bot: str) -> bool:
    user = comment.get("user") or {}
    return user.get("login") == bot and user.get("type") == "Bot" and str(comment.get("body") or "").startswith(MARK)


def _is_shown(found: list[dict[str, Any]], section: MachineSection) -> bool:
    if len(found) != 1:
        return False
    shown = parse(found[0]["body"]).get(section.hardware)
    return shown is not None and shown.entry == section.entry


def _write(github: GitHub, target: CommentTarget, section: MachineSection, found: list[dict[str, Any]]) -> None:
    """Put the section into the oldest comment and fold later ones, left by writers that raced, into it."""
    sections: dict[str, MachineSection] = {}
    for comment in found:
        sections = merge(sections, parse(comment["body"]))
    body = {"body": render(put(sections, section), target.runs_url)}
    if not found:
        github.send("POST", target.comments, body, is_repeatable=False)
        return
    github.send("PATCH", target.comment(found[0]["id"]), body)
    for extra in found[1:]:
        _ignore_missing(lambda extra=extra: github.send("DELETE", target.comment(extra["id"])))  # type: ignore[misc]


def _ignore_missing(deed: Callable[[], object]) -> None:
    try:
        deed()
    except GitHubNotFoundError:
        return


def set_status(github: GitHub, target: CommentTarget, section: MachineSection, url: str) -> None:
    """Set `perfgate/<hardware>` on the measured commit; the newest of a context counts, so it may be sent twice."""
    status = {**describe(section.entry), "context": f"perfgate/{section.hardware}", "target_url": url}
    github.send("POST", f"/repos/{target.repository}/statuses/{section.entry.head_sha}", status)


def set_skip_status(github: GitHub, target: CommentTarget, hardware: str, head_sha: str, url: str) -> bool:
    """Set `perfgate/<hardware>` to a success that says "not asked for", on a commit without a measurement.

    A branch may require that status of every pull request. Return whether it was set: an answer that the commit has already is
    worth more, and stays.
    """
    context = f"perfgate/{hardware}"
    path = f"/repos/{target.repository}/commits/{head_sha}/statuses"
    # Newest first; only the newest of a context counts.
    newest = next((found for found in github.list_all(path) if found.get("context") == context), {"state": "pending"})
    if newest.get("state") != "pending":
        return False
    status = {"state": "success", "description": NOT_ASKED, "context": context, "target_url": url}
    github.send("POST", f"/repos/{target.repository}/statuses/{head_sha}", status)
    return True
