"""Commit statuses: what stands on a commit, and what may take its place.

A status is set before the comment is written, and its rank is read from the status itself, so neither a limit that GitHub sets
on comments nor a comment that another workflow forged keeps a verdict back. The status names its run in its address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfgate.github.client import GitHub
from perfgate.github.comment.states import State

CONTEXT = "perfgate/"
MAX_DESCRIPTION = 140
"""Characters; GitHub refuses more."""

_RUN = re.compile(r".*/actions/runs/(\d{1,18})(?:/attempts/(\d{1,9}))?")
_NOT_ASKED = "not asked for, so nothing was measured"
_AWAITING = State.AWAITING.sentence[:MAX_DESCRIPTION]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStatus:
    """One status of a commit, as it is or as it is to be. `url` is the address of the run that it is about."""

    context: str
    state: str
    description: str
    url: str

    @property
    def order(self) -> tuple[int, int]:
        """Run and attempt: later ones have larger numbers. (0, 0) where the address names none."""
        match = _RUN.fullmatch(self.url)
        return (int(match[1]), int(match[2] or 1)) if match else (0, 0)

    @property
    def is_answer(self) -> bool:
        """Whether something was measured, or could not be: no announcement, and no word that nothing was asked for."""
        return self.state != "pending" and self.description != _NOT_ASKED


def name_context(hardware: str, branch: str = "") -> str:
    """The name of a machine's status. `branch` is the base branch, empty for the repository's default branch.

    A result holds for one base: a status of another branch has another name, so that none answers for a pull request elsewhere.
    """
    return f"{CONTEXT}{hardware} ({branch})" if branch else f"{CONTEXT}{hardware}"


def describe_state(context: str, state: State, url: str) -> CommitStatus:
    """The status that says `state` of the run at `url`."""
    return CommitStatus(context=context, state=state.commit_status, description=state.sentence[:MAX_DESCRIPTION], url=url)


def describe_skip(context: str, url: str) -> CommitStatus:
    """The status of a commit that no one asked to measure: a branch may require one of every pull request."""
    return CommitStatus(context=context, state="success", description=_NOT_ASKED, url=url)


def fetch_statuses(github: GitHub, repository: str, sha: str) -> dict[str, CommitStatus]:
    """The newest status of each of perfgate's contexts, with one request for a commit of up to a hundred statuses."""
    found: dict[str, CommitStatus] = {}
    for entry in github.list_all(f"/repos/{repository}/commits/{sha}/statuses"):
        context = str(entry.get("context"))
        if context.startswith(CONTEXT) and context not in found:
            found[context] = _read(context, entry)
    return found


def _read(context: str, entry: Mapping[str, Any]) -> CommitStatus:
    words = (str(entry.get(name) or "") for name in ("state", "description", "target_url"))
    state, description, url = words
    return CommitStatus(context=context, state=state, description=description, url=url)


def may_replace(old: CommitStatus | None, new: CommitStatus) -> bool:
    """Whether `new` is worth more than what stands.

    An answer stands until a later run answers. An announcement stands until there is an answer, so an event that measures
    nothing makes no success of it; only the wait for a maintainer ends with the label.
    """
    if old is None:
        return True
    if new.is_answer:
        return not old.is_answer or old.order <= new.order
    if new.state == "pending":
        return not old.is_answer and (old.state != "pending" or old.order <= new.order)
    return not old.is_answer and (old.description in {_AWAITING, _NOT_ASKED} or old.order == new.order)


def set_statuses(github: GitHub, repository: str, sha: str, wanted: Sequence[CommitStatus]) -> tuple[CommitStatus, ...]:
    """Set what may replace what stands, and return what then stands of `wanted`; what stood already is not sent again."""
    known = fetch_statuses(github, repository, sha)
    shown = tuple(status for status in wanted if may_replace(known.get(status.context), status))
    for status in shown:
        if known.get(status.context) != status:
            send_status(github, repository, sha, status)
    return shown


def send_status(github: GitHub, repository: str, sha: str, status: CommitStatus) -> None:
    """Send one; the newest of a context counts, so it may be sent twice."""
    body = {
        "context": status.context,
        "state": status.state,
        "description": status.description[:MAX_DESCRIPTION],
        "target_url": status.url,
    }
    github.send("POST", f"/repos/{repository}/statuses/{sha}", body)
