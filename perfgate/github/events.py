"""What an event means: measure, skip, or wait for a maintainer who has read the code. Pure: payload in, decision out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from pydantic import TypeAdapter, ValidationError

from perfgate.errors import GitHubError, InputError
from perfgate.github.client import GitHub
from perfgate.github.handoff.subject import Sha
from perfgate.runner.settings import Repository
from perfgate.storage.schema import find

MAX_EVENT_BYTES = 8 * 2**20
NO_SHA = "0" * 40
MAX_LISTED = 300
"""So many files of a comparison GitHub lists at most."""
LABEL = "perfgate"
"""What a pull request must carry to be measured; the workflow files name it too."""


class Action(StrEnum):
    """What becomes of an event."""

    RUN = "run"
    SKIP = "skip"
    AWAIT = "await"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPlan:
    """The decision, its reason, and the change that it is about. `pull_request` is 0 in a merge queue.

    `base_sha` is the queue's own base, or of a pull request the tip that its event names: what is measured is compared with
    the merge base, which `ancestry.find_merge_base` asks GitHub for.
    """

    action: Action
    reason: str
    pull_request: int = 0
    head_sha: str = NO_SHA
    base_sha: str = NO_SHA
    is_smoke: bool = False


def read_event(path: Path) -> dict[str, Any]:
    """Read the payload that GitHub wrote for this run. Raise InputError when there is none."""
    try:
        if path.stat().st_size > MAX_EVENT_BYTES:
            raise InputError(f"{path}: more than {MAX_EVENT_BYTES} bytes is no event")
        payload = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); is GITHUB_EVENT_PATH set?") from None
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path}: no event, not valid JSON ({error})") from None
    if not isinstance(payload, dict):
        raise InputError(f"{path}: no event, expected a JSON object")
    return payload


def find_sha(payload: Mapping[str, Any], path: str) -> str:
    """Find a commit. Raise InputError when what stands there is none."""
    return _check(TypeAdapter(Sha), find(payload, path), path, "a commit's 40 hexadecimal digits")


def find_repository(payload: Mapping[str, Any], path: str) -> str:
    """Find the name of a repository. Raise InputError when what stands there is none."""
    return _check(TypeAdapter(Repository), find(payload, path), path, "OWNER/NAME")


def _check(adapter: TypeAdapter[str], value: Any, path: str, expected: str) -> str:
    # What has no dot in its path was given to a command: an event holds each of these deeper.
    place = f"event: {path}" if "." in path else f"--{path.replace('_', '-')}"
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError:
        raise InputError(f"{place}: missing or not {expected}") from None


def find_number(payload: Mapping[str, Any], path: str) -> int:
    """Find a positive whole number. Raise InputError when what stands there is none."""
    value = find(payload, path)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**53:
        raise InputError(f"event: {path}: missing or no number")
    return value


def plan_event(event: str, payload: Mapping[str, Any], base_branches: Collection[str] = ()) -> EventPlan:
    """Decide what becomes of an event of the pull request workflow."""
    if event == "merge_group":
        head, base = find_sha(payload, "merge_group.head_sha"), find_sha(payload, "merge_group.base_sha")
        return EventPlan(action=Action.RUN, reason="in the merge queue", head_sha=head, base_sha=base, is_smoke=True)
    if event != "pull_request":
        raise InputError(f"event {event[:40]!r}: this workflow plans pull_request and merge_group only")
    return plan_pull(find(payload, "pull_request"), base_branches)


def plan_pull(pull: Mapping[str, Any], base_branches: Collection[str] = ()) -> EventPlan:
    """Decide from a pull request as GitHub describes it, in an event or through the interface.

    What goes into the default branch is measured, and what goes into one of `base_branches`: a result against any other branch
    would stand on the commit as if it were one against these.
    """
    action, reason = _decide(pull, base_branches)
    return EventPlan(
        action=action,
        reason=reason,
        pull_request=find_number(pull, "number"),
        head_sha=find_sha(pull, "head.sha"),
        base_sha=find_sha(pull, "base.sha"),
    )


def _decide(pull: Mapping[str, Any], base_branches: Collection[str]) -> tuple[Action, str]:
    listed = find(pull, "labels") or []
    if not isinstance(listed, list):
        raise InputError("event: labels: no list")
    labels = [find(entry, "name") for entry in listed if isinstance(entry, dict)]
    if find(pull, "state") not in (None, "open"):
        return Action.SKIP, "the pull request is closed"
    if find(pull, "draft"):
        return Action.SKIP, "the pull request is a draft"
    if LABEL not in labels:
        return Action.SKIP, f"the label {LABEL} is not set"
    if fault := find_base_fault(pull, base_branches):
        return Action.REFUSE, fault
    if is_fork(pull):
        return Action.AWAIT, "the code comes from a fork: a maintainer reads it, then starts the measurement"
    return Action.RUN, f"the label {LABEL} is set"


def find_base_fault(pull: Mapping[str, Any], base_branches: Collection[str]) -> str:
    """Why a pull request into its base branch is not measured; empty where it is."""
    branch = find(pull, "base.ref")
    if isinstance(branch, str) and branch and branch in (find(pull, "base.repo.default_branch"), *base_branches):
        return ""
    where = f"it goes into {str(branch)[:80]!r}, which is neither the default branch nor one of base_branches in perfgate.toml"
    return f"{where}; add it there, or merge elsewhere"


def find_branch(pull: Mapping[str, Any]) -> str:
    """The base branch as a status names it: empty for the repository's default branch."""
    branch = find(pull, "base.ref")
    return "" if branch == find(pull, "base.repo.default_branch") else str(branch)


def is_fork(pull: Mapping[str, Any]) -> bool:
    """Whether the head lies in another repository than the base, or in one that is gone."""
    return bool(find_repository(pull, "base.repo.full_name") != find(pull, "head.repo.full_name"))


def find_merge_base(github: GitHub, pull: Mapping[str, Any]) -> str:
    """Ask GitHub where `pull` left its base branch. Raise InputError where that cannot be known: no other commit will do.

    Against the tip of the base branch a pull request that is behind would be charged with what the branch gained or lost since.
    The branch is asked for by name, because `base.sha` of an event may be older than what the pull request has merged.
    """
    return fetch_branch_point(github, pull).merge_base


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPoint:
    """Where a pull request left its base branch, and what it has since: how many commits, and which paths they touch.

    `changed` is None where GitHub lists only some of the paths.
    """

    merge_base: str
    commits: int
    changed: tuple[str, ...] | None


def fetch_branch_point(github: GitHub, pull: Mapping[str, Any], measured: str = "") -> BranchPoint:
    """The merge base as `find_merge_base` has it, with what GitHub tells of the commits since.

    They end with the commit that was `measured`, else with the head. Raise InputError as `find_merge_base` does.
    """
    repository, head = find_repository(pull, "base.repo.full_name"), measured or find_sha(pull, "head.sha")
    branch = find(pull, "base.ref")
    if not isinstance(branch, str) or not branch or ".." in branch:
        raise InputError("event: base.ref: missing or no branch")
    try:
        answer = github.get(f"/repos/{repository}/compare/{quote(branch, safe='')}...{head}", per_page=1)
        commits = find(answer, "ahead_by")
        return BranchPoint(
            merge_base=find_sha(answer, "merge_base_commit.sha"),
            commits=commits if isinstance(commits, int) else 0,
            changed=_read_changed(find(answer, "files")),
        )
    except (GitHubError, InputError) as error:
        raise InputError(f"nothing is measured: where {head} left {branch!r} cannot be known ({error})") from None


def _read_changed(files: Any) -> tuple[str, ...] | None:
    """The paths of a comparison, those that a rename left too; None where they are not told, or as many as GitHub lists."""
    if not isinstance(files, list) or len(files) >= MAX_LISTED:
        return None
    told = [file.get(key) for file in files if isinstance(file, dict) for key in ("filename", "previous_filename")]
    return tuple(dict.fromkeys(path for path in told if isinstance(path, str)))
