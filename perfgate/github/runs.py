"""From a finished run of the pull request workflow to what may be said of it: facts from GitHub, numbers from artifacts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.errors import GitHubError, HandoffError, InputError, StaleError
from perfgate.github.client import GitHub
from perfgate.github.comment.publisher import CommentTarget
from perfgate.github.comment.states import State
from perfgate.github.events import find, find_number, find_repository, find_sha
from perfgate.github.handoff.artifact import MAX_ARCHIVE_BYTES, open_artifact
from perfgate.github.handoff.handoff import Handoff, HandoffSubject
from perfgate.github.settings import MatrixJob
from perfgate.scenario.schema import NAME

QUEUE = "gh-readonly-queue/"
HEALTH_STEP = "The machine is fit to measure"
JOB = re.compile(rf"(?:.* / )?bench (?P<hardware>{NAME}) (?P<scenario>{NAME})")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRun:
    """A run of the pull request workflow, as GitHub tells it, with its pull request, which a run of the merge queue has not."""

    repository: str
    run_id: int
    run_attempt: int
    head_sha: str
    pull: Mapping[str, Any] | None

    @property
    def jobs(self) -> str:
        """The path of the jobs of this attempt."""
        return f"/repos/{self.repository}/actions/runs/{self.run_id}/attempts/{self.run_attempt}/jobs"

    @property
    def pull_request(self) -> int:
        """The pull request's number, 0 in a merge queue."""
        return 0 if self.pull is None else find_number(self.pull, "number")

    def subject(self, hardware: str) -> HandoffSubject:
        """What every hand-off of this run must say of itself."""
        return HandoffSubject(
            repository=self.repository,
            pull_request=self.pull_request,
            head_sha=self.head_sha,
            run_id=self.run_id,
            run_attempt=self.run_attempt,
            hardware=hardware,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResult:
    """What a run has of one machine: hand-offs to judge, a state that needs no numbers, and remarks on what is missing."""

    hardware: str
    handoffs: tuple[Handoff, ...]
    state: State | None
    remarks: tuple[str, ...]


def fetch_run(github: GitHub, target: CommentTarget, head_sha: str, *, run_id: int, run_attempt: int) -> WorkflowRun:
    """The run that measures `head_sha`, with its pull request as GitHub describes it now."""
    pull = github.get(f"/repos/{target.repository}/pulls/{target.pull_request}")
    return WorkflowRun(repository=target.repository, run_id=run_id, run_attempt=run_attempt, head_sha=head_sha, pull=pull)


def identify(github: GitHub, payload: Mapping[str, Any]) -> WorkflowRun:
    """Find the pull request of a `workflow_run` event. Raise StaleError when its head has moved on, or it was closed.

    The event names pull requests for branches of the same repository only, so the branch is looked up. A run of the merge queue
    has none: its branch must be one that GitHub made for the queue of this very repository.
    """
    repository = find_repository(payload, "repository.full_name")
    head_sha = find_sha(payload, "workflow_run.head_sha")
    if find(payload, "workflow_run.event") == "merge_group":
        _require_queue(payload, repository)
        return _make_run(payload, repository, head_sha, None)
    if find(payload, "workflow_run.event") != "pull_request":
        raise InputError("event: workflow_run.event: only runs of pull requests and of the merge queue are reported")
    owner, branch = find(payload, "workflow_run.head_repository.owner.login"), find(payload, "workflow_run.head_branch")
    if not isinstance(owner, str) or not isinstance(branch, str):
        raise StaleError("the repository or branch that this run measured is gone; there is nobody to tell")
    pulls = github.list_all(f"/repos/{repository}/pulls", head=f"{owner}:{branch}", state="open")
    matching = [
        pull for pull in pulls if find(pull, "head.sha") == head_sha and find(pull, "base.repo.full_name") == repository
    ]
    if len(matching) != 1:
        raise StaleError(f"{len(matching)} open pull requests have their head at {head_sha}; a result needs exactly one")
    return _make_run(payload, repository, head_sha, matching[0])


def _require_queue(payload: Mapping[str, Any], repository: str) -> None:
    if find(payload, "workflow_run.head_repository.full_name") != repository:
        raise InputError("event: workflow_run.head_repository: a merge queue's branch lies in the repository itself")
    if not str(find(payload, "workflow_run.head_branch")).startswith(QUEUE):
        raise InputError(f"event: workflow_run.head_branch: a merge queue's branch begins with {QUEUE}")


def _make_run(payload: Mapping[str, Any], repository: str, head_sha: str, pull: Mapping[str, Any] | None) -> WorkflowRun:
    return WorkflowRun(
        repository=repository,
        run_id=find_number(payload, "workflow_run.id"),
        run_attempt=find_number(payload, "workflow_run.run_attempt"),
        head_sha=head_sha,
        pull=pull,
    )


def read_runners(github: GitHub, repository: str, run_id: int, run_attempt: int) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What GitHub says of a run, and the names of the runners that its jobs ran on."""
    place = f"/repos/{repository}/actions/runs/{run_id}"
    jobs = github.list_all(f"{place}/attempts/{run_attempt}/jobs")
    return github.get(place), tuple(str(job.get("runner_name")) for job in jobs)


def collect(github: GitHub, run: WorkflowRun, expected: Sequence[MatrixJob]) -> tuple[MachineResult, ...]:
    """Read what a finished run left of each job that it should have had; a job that never ran is told, not passed over.

    Only for branches of the same repository: a fork writes its own workflow.
    """
    listed = _list_jobs(github, run)
    jobs = {job: listed.get((job.hardware, job.scenario)) for job in expected}
    artifacts = {
        str(found["name"]): found
        for found in github.list_all(f"/repos/{run.repository}/actions/runs/{run.run_id}/artifacts")
        if not found.get("expired")
    }
    names = sorted({job.hardware for job in jobs})
    return tuple(
        _collect(github, run, name, {job.scenario: jobs[job] for job in jobs if job.hardware == name}, artifacts)
        for name in names
    )


def was_nothing_planned(github: GitHub, run: WorkflowRun) -> bool:
    """Whether a finished run measured nothing because that was decided, not because something broke.

    Then the plan ended well and the measuring jobs were skipped, or the plan itself was, as for another label. For any other
    end, a plan that failed or a run that was cancelled among them, the answer is no.
    """
    ends: dict[str, set[str]] = {"plan": set(), "gpu": set()}
    for job in github.list_all(run.jobs):
        name = str(job.get("name")).rpartition(" / ")[2]
        if JOB.fullmatch(name):
            return False
        if name in ends:
            ends[name].add(str(job.get("conclusion")))
    return ends["plan"] == {"skipped"} or (ends["plan"] == {"success"} and ends["gpu"] == {"skipped"})


def _list_jobs(github: GitHub, run: WorkflowRun) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The run's measuring jobs by machine and scenario."""
    matches = ((JOB.fullmatch(str(job.get("name"))), job) for job in github.list_all(run.jobs))
    return {(match["hardware"], match["scenario"]): job for match, job in matches if match}


def _collect(
    github: GitHub,
    run: WorkflowRun,
    hardware: str,
    jobs: Mapping[str, Mapping[str, Any] | None],
    artifacts: Mapping[str, Mapping[str, Any]],
) -> MachineResult:
    handoffs: list[Handoff] = []
    remarks, is_sick = [], False
    for scenario, job in sorted(jobs.items()):
        artifact = artifacts.get(f"perfgate-{hardware}-{scenario}")
        if job is None:
            remarks.append(f"{scenario}: no job ran")
            continue
        if artifact is None:
            is_sick = is_sick or _is_sick(job)
            remarks.append(
                f"{scenario}: {'the machine is not fit to measure' if _is_sick(job) else 'no result was handed over'}"
            )
            continue
        try:
            handoffs += [_require(found, scenario) for found in fetch(github, run, artifact, hardware)]
        except (HandoffError, GitHubError) as error:
            remarks.append(f"{scenario}: {error}")
    state = (State.SICK if is_sick else State.INVALID) if remarks else None
    return MachineResult(hardware=hardware, handoffs=tuple(handoffs), state=state, remarks=tuple(remarks))


def _require(handoff: Handoff, scenario: str) -> Handoff:
    if handoff.scenario != scenario:
        raise HandoffError(f"the hand-off is of scenario {handoff.scenario}; refused")
    return handoff


def _is_sick(job: Mapping[str, Any]) -> bool:
    steps = [step for step in job.get("steps") or () if isinstance(step, dict)]
    return any(step.get("name") == HEALTH_STEP and step.get("conclusion") == "failure" for step in steps)


def fetch(github: GitHub, run: WorkflowRun, artifact: Mapping[str, Any], hardware: str) -> tuple[Handoff, ...]:
    """Download an artifact of `run` and open it."""
    if (found := find(artifact, "workflow_run.id")) not in (None, run.run_id):
        raise HandoffError(f"the artifact belongs to run {found}, not to {run.run_id}; refused")
    number = find_number(artifact, "id")
    content = github.download(f"/repos/{run.repository}/actions/artifacts/{number}/zip", MAX_ARCHIVE_BYTES)
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        path = Path(folder) / "artifact.zip"
        path.write_bytes(content)
        return open_artifact(path, run.subject(hardware))
