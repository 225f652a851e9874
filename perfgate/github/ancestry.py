"""The commit that a pull request is compared with: where it left the main branch, not where the main branch is by now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from perfgate.errors import GitHubError, InputError
from perfgate.github.client import GitHub
from perfgate.github.events import find, find_repository, find_sha


def find_merge_base(github: GitHub, pull: Mapping[str, Any]) -> str:
    """Ask GitHub where `pull` left its base branch. Raise InputError where that cannot be known: no other commit will do.

    Against the tip of the base branch a pull request that is behind would be charged with what the branch gained or lost since.
    The branch is asked for by name, because `base.sha` of an event may be older than what the pull request has merged.
    """
    repository, head = find_repository(pull, "base.repo.full_name"), find_sha(pull, "head.sha")
    branch = find(pull, "base.ref")
    if not isinstance(branch, str) or not branch or ".." in branch:
        raise InputError("event: base.ref: missing or no branch")
    try:
        answer = github.get(f"/repos/{repository}/compare/{quote(branch, safe='')}...{head}", per_page=1)
        return find_sha(answer, "merge_base_commit.sha")
    except (GitHubError, InputError) as error:
        raise InputError(f"nothing is measured: where {head} left {branch!r} cannot be known ({error})") from None
