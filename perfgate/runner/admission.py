"""May this job use the machine? Judged on the machine itself, for a pull request can change every file that came before.

Pure: event in, decision out. A job is admitted if a person with write access stands behind its code: the main branch's
workflow, the merge queue, or a pull request whose branch lies in the repository itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.storage.schema import find

# Events that run the main branch's workflow file, and are started by people with write access or by GitHub's clock.
MAIN_EVENTS = ("workflow_dispatch", "schedule", "push")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which repositories may use this machine, with which of their workflow files."""

    repositories: frozenset[str]
    workflows: frozenset[str]
    main: str = "refs/heads/main"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerJob:
    """What the runner tells of a job. `workflow_ref` is OWNER/NAME/PATH@REF of the workflow that the event started."""

    event: str
    repository: str
    workflow_ref: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a job is admitted, and why or why not."""

    is_admitted: bool
    reason: str


def decide(job: RunnerJob, rules: Rules) -> Decision:
    """Admit a job or refuse it. Whatever is missing, unknown or contradicts itself is refused."""
    reason = _find_fault(job, rules)
    return Decision(is_admitted=reason is None, reason=reason or f"{job.event} of {job.repository}")


def _find_fault(job: RunnerJob, rules: Rules) -> str | None:
    match = re.fullmatch(
        r"(?P<repository>[^/@]+/[^/@]+)/\.github/workflows/(?P<file>[\w.-]+\.ya?ml)@(?P<ref>refs/\S+)", job.workflow_ref
    )
    found = match.groupdict() if match else dict.fromkeys(("repository", "file", "ref"), "")
    checks = (
        (job.repository not in rules.repositories, f"repository {job.repository[:100]!r} may not use this machine"),
        (find(job.payload, "repository.full_name") != job.repository, "the event is of another repository than the job"),
        (found["repository"] != job.repository, "the workflow is not one of this repository"),
        (found["file"] not in rules.workflows, f"workflow {found['file']} may not use this machine"),
    )
    return next((reason for is_wrong, reason in checks if is_wrong), None) or _find_event_fault(job, found["ref"], rules)


def _find_event_fault(job: RunnerJob, ref: str, rules: Rules) -> str | None:
    if job.event in MAIN_EVENTS:
        return None if ref == rules.main else f"{job.event} of {ref}: only {rules.main} may"
    if job.event == "merge_group":
        return None if ref.startswith("refs/heads/gh-readonly-queue/") else "merge_group outside of the merge queue"
    if job.event == "pull_request":
        return _find_pull_fault(job, ref)
    return f"event {job.event[:40]!r} may not use this machine"


def _find_pull_fault(job: RunnerJob, ref: str) -> str | None:
    """A fork's branch is refused; so is one whose repository is gone, because its owner is unknown then."""
    number = find(job.payload, "pull_request.number")
    if ref != f"refs/pull/{number}/merge":
        return "the workflow is not that of the pull request"
    if find(job.payload, "pull_request.base.repo.full_name") != job.repository:
        return "the pull request is of another repository"
    if find(job.payload, "pull_request.head.repo.full_name") != job.repository:
        return "the pull request comes from a fork: a maintainer starts it through perfgate-dispatch"
    return None
