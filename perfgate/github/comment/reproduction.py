"""What a reader of a comment types first, so that the commands in it work on a machine that has nothing of the session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from shlex import join

from perfgate.github.handoff.subject import HandoffSubject
from perfgate.results.records import BASE_TREE, CANDIDATE_TREE

REPORT = "perfgate-report"
"""The artifact of pages and result folders that the reporting workflows leave; they name it too."""

REPORT_DIR = "report"
"""Where that artifact is made, and where a reader fetches it to, so that its paths are the same."""

_ARTIFACT = re.compile(r"https?://\S+/actions/runs/(\d+)(?:/artifacts/\d+|#artifacts)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How a reader gets what was measured of `subject`, a change of `base_sha`; neither is taken from the hand-off.

    `base_sha` is empty in a merge queue, where a commit stands on the one before it. `link` is the address of the artifact
    REPORT or of the run that keeps it; without one the reader is sent to the run that measured.
    """

    subject: HandoffSubject
    base_sha: str
    link: str = ""
    server_url: str = "https://github.com"

    @property
    def address(self) -> str:
        """Where the numbers can be read in full."""
        return self.link or f"{self.server_url}/{self.subject.repository}/actions/runs/{self.subject.run_id}"

    @property
    def title(self) -> str:
        """What lies at the address."""
        return "report" if self.link else "run's summary"

    @property
    def trees(self) -> str:
        """The command that makes the working trees of both commits, in a clone of the repository."""
        head = self.subject.head_sha
        base = self.base_sha or f"{head}~1"
        steps = (
            ("git", "fetch", "origin", *([self.base_sha] if self.base_sha else []), head),
            ("git", "worktree", "add", BASE_TREE, base),
            ("git", "worktree", "add", CANDIDATE_TREE, head),
        )
        return " && ".join(join(step) for step in steps)

    @property
    def span(self) -> tuple[str, str] | None:
        """The commits of base and candidate, between which a slow one is searched; None where the base is not known."""
        return (self.base_sha, self.subject.head_sha) if self.base_sha else None

    @property
    def fetch(self) -> str:
        """The command that fetches the result folders; empty where they were not kept."""
        match = _ARTIFACT.fullmatch(self.link)
        if match is None:
            return ""
        return join(
            ("gh", "run", "download", match[1], "--repo", self.subject.repository, "--name", REPORT, "--dir", REPORT_DIR)
        )

    def name_folder(self, scenario: str) -> str:
        """What a reader who fetched it calls the result folder of a scenario; empty where it was not kept."""
        return f"{REPORT_DIR}/{self.subject.hardware}/{scenario}" if self.fetch else ""
