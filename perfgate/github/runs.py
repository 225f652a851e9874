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
from perfgate.github.events import find, find_branch, find_number, find_repository, find_sha
from perfgate.github.handoff.artifact import MAX_ARCHIVE_BYTES, open_artifact
from perfgate.github.handoff.handoff import Handoff, HandoffSubject
from perfgate.github.settings import MatrixJob
from perfgate.scenario.schema import NAME

QUEUE = "gh-readonly-queue/"
HEALTH_STEP = "The machine is fit to measure"
RUNNER = "perfgate-"
"""How the name of every runner begins that `perfgate runner` or the charts of deploy/kubernetes register."""

JOB = re.compile(rf"(?:.* / )?bench (?P<hardware>{NAME}) (?P<scenario>{NAME})")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResult:
    """What a run has of one machine: hand-offs to judge, a state that needs no numbers, and remarks on what is missing."""

    hardware: str
    handoffs: tuple[Handoff, ...]
    state: State | None
    remarks: tuple[str, ...]


def fetch_run(github: GitHub, target: CommentTarget, head_sha: str, *, run_id: int, run_attempt: int) -> WorkflowRun:
    """The run that measures `head_sha`, with its pull request as GitHub describes it now.

    Raise StaleError when that is not its head any more: such a result says nothing of what would be merged.
    """
    pull = github.get(f"/repos/{target.repository}/pulls/{target.pull_request}")
    if (head := find_sha(pull, "head.sha")) != head_sha:
        raise StaleError(
            f"pull request {target.pull_request} is at {head} by now, and this is of {head_sha}; measure the new commit"
        )
    return WorkflowRun(
        repository=target.repository,
        run_id=run_id,
        run_attempt=run_attempt,
        head_sha=head_sha,
        pull=pull,
        branch=find_branch(pull),
    )


def identify(github: GitHub, payload: Mapping[str, Any]) -> WorkflowRun:
    """Find the pull request of a `workflow_run` event. Raise StaleError when its head has moved on, or it was closed.

    The event names pull requests for branches of the same repository only, so the branch is looked up. A run of the merge queue
    has none: its branch must be one that GitHub made for the queue of this very repository.
    """
    repository = find_repository(payload, "repository.full_name")
    head_sha = find_sha(payload, "workflow_run.head_sha")
    if find(payload, "workflow_run.event") == "merge_group":
        return _make_run(payload, repository, head_sha, None, _find_queue(payload, repository))
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
    return _make_run(payload, repository, head_sha, matching[0], find_branch(matching[0]))


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


def read_runners(github: GitHub, repository: str, run_id: int, run_attempt: int) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What GitHub says of a run, and the names of the runners that its jobs ran on."""
    place = f"/repos/{repository}/actions/runs/{run_id}"
    jobs = github.list_all(f"{place}/attempts/{run_attempt}/jobs")
    return github.get(place), tuple(str(job.get("runner_name")) for job in jobs)


Jobs = Mapping[str, Mapping[str, Any]]
"""A run's jobs by their names without the name of a calling job, each as its last attempt left it."""


def fetch_jobs(github: GitHub, run: WorkflowRun) -> Jobs:
    """Ask GitHub for the jobs of `run`.

    A later attempt may have run some of them only. Whether its list names the others is GitHub's choice, so all attempts are
    asked for, and of each job the last that is not later than this run's counts.
    """
    path = f"/repos/{run.repository}/actions/runs/{run.run_id}/jobs"
    found: dict[str, Mapping[str, Any]] = {}
    for job in github.list_all(path, filter="all"):
        name = str(job.get("name")).rpartition(" / ")[2]
        if _find_attempt(found.get(name)) <= _find_attempt(job) <= run.run_attempt:
            found[name] = job
    return found


def _find_attempt(job: Mapping[str, Any] | None) -> int:
    value = (job or {}).get("run_attempt", 0)
    return value if isinstance(value, int) else 0


def was_nothing_planned(jobs: Jobs, *, is_asked: bool) -> bool:
    """Whether a finished run measured nothing because that was decided, not because something broke.

    Then the plan ended well and the measuring jobs were skipped, or the plan itself was, as for another label. For any other
    end, a plan that failed or a run that was cancelled among them, the answer is no where a measurement `is_asked` for. A job
    that measured settles it: nothing that happens to the pull request afterwards makes that unplanned.
    """
    if any(JOB.fullmatch(name) for name in jobs):
        return False
    if not is_asked:
        return True
    plan, gpu = (str(jobs.get(name, {}).get("conclusion")) for name in ("plan", "gpu"))
    return plan == "skipped" or (plan == "success" and gpu == "skipped")


def collect(github: GitHub, run: WorkflowRun, expected: Sequence[MatrixJob], jobs: Jobs) -> tuple[MachineResult, ...]:
    """Read what a finished run left of each job that it should have had; a job that never ran is told, not passed over.

    Only for branches of the same repository: a fork writes its own workflow.
    """
    artifacts: dict[str, list[Mapping[str, Any]]] = {}
    for found in github.list_all(f"/repos/{run.repository}/actions/runs/{run.run_id}/artifacts"):
        if not found.get("expired"):
            artifacts.setdefault(str(found.get("name")), []).append(found)
    read = {wanted: _read_job(github, run, wanted, jobs, artifacts) for wanted in expected}
    names = sorted({wanted.hardware for wanted in expected})
    return tuple(_join(name, {job.scenario: found for job, found in read.items() if job.hardware == name}) for name in names)


def _join(hardware: str, found: Mapping[str, tuple[Handoff, ...] | _Missing]) -> MachineResult:
    missing = {scenario: what for scenario, what in sorted(found.items()) if isinstance(what, _Missing)}
    handoffs = tuple(handoff for _, what in sorted(found.items()) if not isinstance(what, _Missing) for handoff in what)
    is_sick = any(what.is_sick for what in missing.values())
    state = (State.SICK if is_sick else State.INVALID) if missing else None
    remarks = tuple(f"{scenario}: {what.reason}" for scenario, what in missing.items())
    return MachineResult(hardware=hardware, handoffs=handoffs, state=state, remarks=remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """Why a job left nothing that may be read."""

    reason: str
    is_sick: bool = False


def _read_job(
    github: GitHub,
    run: WorkflowRun,
    wanted: MatrixJob,
    jobs: Jobs,
    artifacts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[Handoff, ...] | _Missing:
    """Only a job that GitHub saw on a runner of the machine speaks for it: a workflow file that names another is no proof."""
    job = jobs.get(f"bench {wanted.hardware} {wanted.scenario}")
    if job is None:
        return _Missing(reason="no job ran")
    if fault := _find_runner_fault(job, wanted):
        return _Missing(reason=fault)
    attempt = _find_attempt(job)
    named = artifacts.get(name_artifact(wanted, attempt), ())
    if len(named) != 1:
        return _find_reason(job, len(named))
    try:
        handoffs = fetch(github, run, named[0], run.subject(wanted.hardware, attempt))
        return tuple(_require(found, wanted.scenario) for found in handoffs)
    except (HandoffError, GitHubError) as error:
        return _Missing(reason=str(error))


def name_artifact(job: MatrixJob, run_attempt: int) -> str:
    """What a measuring job calls what it leaves; the workflow says so too. An attempt never overwrites another's."""
    return f"perfgate-{job.hardware}-{job.scenario}-{run_attempt}"


def _find_runner_fault(job: Mapping[str, Any], wanted: MatrixJob) -> str:
    labels = {str(label) for label in job.get("labels") or ()}
    if not labels and job.get("conclusion") in {"skipped", "cancelled"}:
        return ""
    if missing := [label for label in wanted.labels if label not in labels]:
        return f"its job did not ask for a runner with the label {missing[0]}, so its numbers are not read"
    if (name := job.get("runner_name")) and not str(name).startswith(RUNNER):
        return f"its job ran on {str(name)[:80]!r}, and no runner of these machines is called so; its numbers are not read"
    return ""


def _find_reason(job: Mapping[str, Any], artifacts: int) -> _Missing:
    if artifacts:
        return _Missing(reason=f"{artifacts} artifacts have the name of its hand-off; none is read")
    if _is_sick(job):
        return _Missing(reason="the machine is not fit to measure", is_sick=True)
    return _Missing(reason="no result was handed over")


def _require(handoff: Handoff, scenario: str) -> Handoff:
    if handoff.scenario != scenario:
        raise HandoffError(f"the hand-off is of scenario {handoff.scenario}; refused")
    return handoff


def _is_sick(job: Mapping[str, Any]) -> bool:
    steps = [step for step in job.get("steps") or () if isinstance(step, dict)]
    return any(step.get("name") == HEALTH_STEP and step.get("conclusion") == "failure" for step in steps)


def fetch(github: GitHub, run: WorkflowRun, artifact: Mapping[str, Any], expected: HandoffSubject) -> tuple[Handoff, ...]:
    """Download an artifact of `run` and open it."""
    if (found := find(artifact, "workflow_run.id")) not in (None, run.run_id):
        raise HandoffError(f"the artifact belongs to run {found}, not to {run.run_id}; refused")
    number = find_number(artifact, "id")
    content = github.download(f"/repos/{run.repository}/actions/artifacts/{number}/zip", MAX_ARCHIVE_BYTES)
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        path = Path(folder) / "artifact.zip"
        path.write_bytes(content)
        return open_artifact(path, expected)
