"""A command with what it is about, and the roles that may give one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.github.asked.words import CommentCommand
from perfgate.github.client import GitHub
from perfgate.github.comment.target import CommentTarget
from perfgate.github.events import find_branch, find_sha
from perfgate.github.settings import Settings
from perfgate.github.statuses import CommitStatus, fetch_statuses, name_context

WRITERS = {"admin", "maintain", "write"}
"""Roles that may spend GPU time. GitHub's coarse permission calls a maintainer a writer too."""

MAINTAINERS = {"admin", "maintain"}
"""Roles that may accept a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command, the pull request as GitHub has it now, and who asks when. `branch` is the default branch."""

    github: GitHub
    target: CommentTarget
    pull: Mapping[str, Any]
    command: CommentCommand
    settings: Settings
    branch: str
    login: str
    now: str

    @property
    def head(self) -> str:
        """The head of the pull request."""
        return find_sha(self.pull, "head.sha")

    @property
    def number(self) -> int:
        """The pull request's number."""
        return self.target.pull_request

    def fetch_standing(self) -> dict[str, CommitStatus]:
        """The statuses of the head, by the names of the machines that the command is about."""
        found = fetch_statuses(self.github, self.target.repository, self.head)
        names = [self.command.hardware] if self.command.hardware else sorted(self.settings.hardware)
        contexts = {name: name_context(name, find_branch(self.pull)) for name in names}
        return {name: found[context] for name, context in contexts.items() if context in found}
