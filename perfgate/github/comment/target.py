"""Where a job comments, and as whom."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfgate.github.client import find_server

BOT = "github-actions[bot]"

Comments = Sequence[Mapping[str, Any]]
"""Comments of a pull request, as GitHub lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentTarget:
    """Where to comment, and as whom. `settle_s` is how long a writer waits before it looks whether another overwrote it.

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
    """Where this job comments: the server and the bot's name may differ on GitHub Enterprise and for an app of one's own."""
    return CommentTarget(
        repository=repository,
        pull_request=pull_request,
        server_url=find_server(environment),
        bot=environment.get("PERFGATE_BOT", BOT),
    )
