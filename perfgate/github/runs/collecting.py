"""From a finished run to what may be reported of it: facts from GitHub, numbers from artifacts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from perfgate.errors import GitHubError, HandoffError
from perfgate.github.client import GitHub
from perfgate.github.comment.states import State
from perfgate.github.events import find_number
from perfgate.github.handoff.artifact import MAX_ARCHIVE_BYTES, open_artifact
from perfgate.github.handoff.handoff import Handoff
from perfgate.github.runs.jobs import Jobs, find_attempt, find_runner_fault, has_died, is_sick
from perfgate.github.runs.run import WorkflowRun
from perfgate.github.settings import MatrixJob
from perfgate.storage.schema import find

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResult:
    """What a run has of one machine: hand-offs to judge, a state that needs no numbers, and remarks on what is missing.

    `died` are the names of the jobs whose runner died before they measured. `unasked` are the scenarios of the settings that
    the run was not to measure.
    """

    hardware: str
    handoffs: tuple[Handoff, ...]
    state: State | None
    remarks: tuple[str, ...]
    died: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()


def mark_unasked(
    results: Sequence[MachineResult], known: Sequence[MatrixJob], asked: Sequence[MatrixJob]
) -> tuple[MachineResult, ...]:
    """Write into each result which of the `known` jobs of its machine are not among those that were `asked` for."""
    left = [(job.hardware, job.scenario) for job in known if job not in asked]
    return tuple(
        replace(result, unasked=tuple(scenario for hardware, scenario in left if hardware == result.hardware))
        for result in results
    )


def collect(github: GitHub, run: WorkflowRun, expected: Sequence[MatrixJob], jobs: Jobs) -> tuple[MachineResult, ...]:
    """Read what a finished run left of each job that it should have had; a job that never ran is reported as missing.

    Only for branches of the same repository: a fork writes its own workflow.
    """
    artifacts = list_artifacts(github, run)
    read = {wanted: _read_job(github, run, wanted, jobs, artifacts) for wanted in expected}
    names = sorted({wanted.hardware for wanted in expected})
    return tuple(_join(name, {job.scenario: found for job, found in read.items() if job.hardware == name}) for name in names)


def _join(hardware: str, found: Mapping[str, tuple[Handoff, ...] | _Missing]) -> MachineResult:
    missing = {scenario: what for scenario, what in sorted(found.items()) if isinstance(what, _Missing)}
    handoffs = tuple(handoff for _, what in sorted(found.items()) if not isinstance(what, _Missing) for handoff in what)
    is_sick = any(what.is_sick for what in missing.values())
    state = (State.SICK if is_sick else State.INVALID) if missing else None
    remarks = tuple(f"{scenario}: {what.reason}" for scenario, what in missing.items())
    died = tuple(f"bench {hardware} {scenario}" for scenario, what in missing.items() if what.has_died)
    return MachineResult(hardware=hardware, handoffs=handoffs, state=state, remarks=remarks, died=died)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """Why a job left nothing that may be read."""

    reason: str
    is_sick: bool = False
    has_died: bool = False


def _read_job(
    github: GitHub,
    run: WorkflowRun,
    wanted: MatrixJob,
    jobs: Jobs,
    artifacts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[Handoff, ...] | _Missing:
    """Only a job that GitHub saw on a runner of the machine counts for it: that a workflow file names it is no proof."""
    job = jobs.get(f"bench {wanted.hardware} {wanted.scenario}")
    if job is None:
        return _Missing(reason="no job ran")
    if fault := find_runner_fault(job, wanted):
        return _Missing(reason=fault)
    attempt = find_attempt(job)
    named = artifacts.get(name_artifact(wanted, attempt), ())
    if len(named) != 1:
        return _find_reason(job, len(named))
    try:
        expected = run.subject(wanted.hardware, attempt)
        handoffs = fetch(github, run, named[0], lambda path: open_artifact(path, expected))
        return tuple(_require(found, wanted.scenario) for found in handoffs)
    except (HandoffError, GitHubError) as error:
        return _Missing(reason=str(error))


def name_artifact(job: MatrixJob, run_attempt: int) -> str:
    """What a measuring job calls what it leaves; the workflow says so too. An attempt never overwrites another's."""
    return f"perfgate-{job.hardware}-{job.scenario}-{run_attempt}"


def _find_reason(job: Mapping[str, Any], artifacts: int) -> _Missing:
    if artifacts:
        return _Missing(reason=f"{artifacts} artifacts have the name of its hand-off; none is read")
    if is_sick(job):
        return _Missing(reason="the machine is not fit to measure", is_sick=True)
    if has_died(job):
        return _Missing(reason="its runner died before it measured", has_died=True)
    return _Missing(reason="no result was handed over")


def _require(handoff: Handoff, scenario: str) -> Handoff:
    if handoff.scenario != scenario:
        raise HandoffError(f"the hand-off is of scenario {handoff.scenario}; refused")
    return handoff


def list_artifacts(github: GitHub, run: WorkflowRun) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """What a run left and still has, by name: several may have one."""
    artifacts: dict[str, list[Mapping[str, Any]]] = {}
    for found in github.list_all(f"/repos/{run.repository}/actions/runs/{run.run_id}/artifacts"):
        if not found.get("expired"):
            artifacts.setdefault(str(found.get("name")), []).append(found)
    return artifacts


def fetch(github: GitHub, run: WorkflowRun, artifact: Mapping[str, Any], read: Callable[[Path], T]) -> T:
    """Download an artifact of `run` and `read` it."""
    if (found := find(artifact, "workflow_run.id")) not in (None, run.run_id):
        raise HandoffError(f"the artifact belongs to run {found}, not to {run.run_id}; refused")
    number = find_number(artifact, "id")
    content = github.download(f"/repos/{run.repository}/actions/artifacts/{number}/zip", MAX_ARCHIVE_BYTES)
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        path = Path(folder) / "artifact.zip"
        path.write_bytes(content)
        return read(path)
