"""Publish results on a pull request: one comment that is edited, never repeated."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from perfgate.errors import GitHubConflictError, GitHubError, GitHubNotFoundError, GitHubUnavailableError
from perfgate.github.client import GitHub
from perfgate.github.comment.marks import find_address, list_own
from perfgate.github.comment.sections import MARK, MachineSection, ResultEntry, merge, parse, put, render
from perfgate.github.comment.target import Comments, CommentTarget

ROUNDS = 6


def upsert(github: GitHub, target: CommentTarget, sections: Sequence[MachineSection], comments: Comments | None = None) -> str:
    """Create or edit the comment until it holds `sections`, and there is only one; return its address.

    `comments` are the pull request's as they were read a moment ago, which saves the first look.

    What stands there at the first look gives way, as the caller has asked the commit's statuses for its rank. Raise StaleError
    where a later run writes meanwhile.
    """
    known: dict[str, MachineSection] | None = None
    for attempt in range(ROUNDS):
        found = find_comments(github, target, None if attempt else comments)
        if _is_shown(found, sections):
            return find_address(found[0])
        known = _join(found) if known is None else known
        try:
            _write(github, target, sections, found, known)
        except (GitHubConflictError, GitHubNotFoundError, GitHubUnavailableError):
            # The comment was edited or deleted meanwhile, or the gateway failed after it was sent: look again.
            github.sleep(target.settle_s)
            continue
        # Two writers that keep pace would overwrite each other for ever.
        github.sleep(target.settle_s * (1 + attempt * random.random()))  # noqa: S311 - it spreads writers, it hides nothing
    found = find_comments(github, target)
    if _is_shown(found, sections):
        return find_address(found[0])
    raise GitHubError(
        f"the comment of pull request {target.pull_request} did not keep its section after {ROUNDS} writes; run again"
    )


def find_comments(github: GitHub, target: CommentTarget, comments: Comments | None = None) -> list[Mapping[str, Any]]:
    """Find perfgate's own comments, oldest first: they begin with the mark, and the bot wrote them. The mark proves nothing."""
    read = github.list_all(target.comments) if comments is None else comments
    return list_own(read, target.bot, MARK, "id")


def _is_shown(found: Sequence[Mapping[str, Any]], sections: Sequence[MachineSection]) -> bool:
    if len(found) != 1:
        return False
    shown = parse(found[0]["body"])
    return all((kept := shown.get(wanted.hardware)) is not None and _says(kept.entry, wanted.entry) for wanted in sections)


def _says(kept: ResultEntry, wanted: ResultEntry) -> bool:
    """Whether what is kept says what is wanted. That an announcement is made again, later, is nothing new."""
    return kept == (wanted if wanted.state.is_final else replace(wanted, at=kept.at))


def _join(found: Sequence[Mapping[str, Any]]) -> dict[str, MachineSection]:
    """The sections of all comments: what one of them has newer is kept."""
    joined: dict[str, MachineSection] = {}
    for comment in found:
        joined = merge(joined, parse(comment["body"]))
    return joined


def _write(
    github: GitHub,
    target: CommentTarget,
    sections: Sequence[MachineSection],
    found: Sequence[Mapping[str, Any]],
    known: Mapping[str, MachineSection],
) -> None:
    """Put the sections into the oldest comment and fold later ones, left by writers that raced, into it."""
    shown = _join(found)
    for section in sections:
        shown = put(shown, section, known)
    body = {"body": render(shown, target.runs_url)}
    if not found:
        github.send("POST", target.comments, body, is_repeatable=False)
        return
    github.send("PATCH", target.comment(found[0]["id"]), body)
    for extra in found[1:]:
        with suppress(GitHubNotFoundError):
            github.send("DELETE", target.comment(extra["id"]))
