"""A run that measured: which commit, and whose pull request, as GitHub reports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.errors import InputError, StaleError
from perfgate.github.client import GitHub
from perfgate.github.comment.target import CommentTarget
from perfgate.github.events import find_branch, find_number, find_repository, find_sha
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.storage.schema import find

QUEUE = "gh-readonly-queue/"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRun:
    """A run that measured, as GitHub tells it, with its pull request, which a run of the merge queue has not.

    `branch` is the base branch of what was measured, empty for the repository's default branch.
    """

    repository: str
    run_id: int
    run_attempt: int
    head_sha: str
    pull: Mapping[str, Any] | None
    branch: str = ""

    @property
    def pull_request(self) -> int:
        """The pull request's number, 0 in a merge queue."""
        return 0 if self.pull is None else find_number(self.pull, "number")

    def subject(self, hardware: str, run_attempt: int | None = None) -> HandoffSubject:
        """What a hand-off of this run must say of itself; of a job that a later attempt kept, with the attempt that ran it."""
        return HandoffSubject(
            repository=self.repository,
            pull_request=self.pull_request,
            head_sha=self.head_sha,
            run_id=self.run_id,
            run_attempt=run_attempt or self.run_attempt,
            hardware=hardware,
        )


def fetch_run(github: GitHub, target: CommentTarget, head_sha: str | None, *, run_id: int, run_attempt: int) -> WorkflowRun:
    """The run that measures `head_sha`, or whatever is the head where that is None, with its pull request as it is now.

    Raise StaleError when that is not its head any more: such a result says nothing of what would be merged.
    """
    pull = fetch_pull(github, target, head_sha)
    return WorkflowRun(
        repository=target.repository,
        run_id=run_id,
        run_attempt=run_attempt,
        head_sha=find_sha(pull, "head.sha"),
        pull=pull,
        branch=find_branch(pull),
    )


def fetch_pull(github: GitHub, target: CommentTarget, head_sha: str | None) -> Mapping[str, Any]:
    """The pull request as it is now. Raise StaleError where `head_sha` is given and is not its head any more."""
    pull: Mapping[str, Any] = github.get(f"/repos/{target.repository}/pulls/{target.pull_request}")
    if (head := find_sha(pull, "head.sha")) != (head_sha or head):
        raise StaleError(
            f"pull request {target.pull_request} is at {head} by now, and this is of {head_sha}; measure the new commit"
        )
    return pull


def identify(github: GitHub, payload: Mapping[str, Any]) -> WorkflowRun:
    """Find the pull request of a `workflow_run` event. Raise StaleError when its head has moved on, or it was closed.

    The event names pull requests for branches of the same repository only, so the branch is looked up. A run of the merge queue
    has none: its branch must be one that GitHub made for the queue of this very repository. A dispatched run reported itself,
    and its pull request is not asked for.
    """
    repository = find_repository(payload, "repository.full_name")
    head_sha = find_sha(payload, "workflow_run.head_sha")
    if is_dispatched(payload):
        return _make_run(payload, repository, head_sha, None, "")
    if find(payload, "workflow_run.event") == "merge_group":
        return _make_run(payload, repository, head_sha, None, _find_queue(payload, repository))
    if find(payload, "workflow_run.event") != "pull_request":
        raise InputError("event: workflow_run.event: only runs of pull requests and of the merge queue are reported")
    owner, branch = find(payload, "workflow_run.head_repository.owner.login"), find(payload, "workflow_run.head_branch")
    if not isinstance(owner, str) or not isinstance(branch, str):
        raise StaleError("the repository or branch that this run measured is gone; there is nothing to report to")
    pulls = github.list_all(f"/repos/{repository}/pulls", head=f"{owner}:{branch}", state="open")
    matching = [
        pull for pull in pulls if find(pull, "head.sha") == head_sha and find(pull, "base.repo.full_name") == repository
    ]
    if len(matching) != 1:
        raise StaleError(f"{len(matching)} open pull requests have their head at {head_sha}; a result needs exactly one")
    return _make_run(payload, repository, head_sha, matching[0], find_branch(matching[0]))


def is_dispatched(payload: Mapping[str, Any]) -> bool:
    """Whether the run of a `workflow_run` event was started on request."""
    return bool(find(payload, "workflow_run.event") == "workflow_dispatch")


def _find_queue(payload: Mapping[str, Any], repository: str) -> str:
    """The branch that the queue merges into, empty for the default branch."""
    if find(payload, "workflow_run.head_repository.full_name") != repository:
        raise InputError("event: workflow_run.head_repository: a merge queue's branch lies in the repository itself")
    match = re.fullmatch(rf"{QUEUE}(?P<branch>.+)/pr-[^/]+", str(find(payload, "workflow_run.head_branch")))
    if match is None:
        raise InputError(f"event: workflow_run.head_branch: a merge queue's branch begins with {QUEUE}")
    return "" if match["branch"] == find(payload, "repository.default_branch") else match["branch"]


def _make_run(
    payload: Mapping[str, Any], repository: str, head_sha: str, pull: Mapping[str, Any] | None, branch: str
) -> WorkflowRun:
    return WorkflowRun(
        repository=repository,
        run_id=find_number(payload, "workflow_run.id"),
        run_attempt=find_number(payload, "workflow_run.run_attempt"),
        head_sha=head_sha,
        pull=pull,
        branch=branch,
    )
