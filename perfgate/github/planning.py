"""What a workflow measures next: the jobs of an event, or those that a maintainer admits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfgate.errors import InputError
from perfgate.github.client import GitHub
from perfgate.github.comment.target import CommentTarget
from perfgate.github.events import (
    Action,
    fetch_branch_point,
    find_base_fault,
    find_merge_base,
    is_fork,
    plan_event,
)
from perfgate.github.runs.control import Task
from perfgate.github.runs.run import WorkflowRun, fetch_run
from perfgate.github.settings import MatrixJob, Settings, format_jobs
from perfgate.machine.accelerators import split_set
from perfgate.scenario.selection import choose_listed, read_table
from perfgate.storage.schema import find


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The jobs that a workflow starts, the change that they measure, and how many scenarios share its error budget.

    `pull_request` is 0 in a merge queue. `resolved` are the machines for whose GPUs both arms are asked what they choose.
    """

    pull_request: int
    head_sha: str
    base_sha: str
    jobs: tuple[MatrixJob, ...]
    scenarios: int
    resolved: tuple[str, ...] = ()

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs of a step that the jobs behind it read."""
        return {
            "pull_request": str(self.pull_request),
            "head_sha": self.head_sha,
            "base_sha": self.base_sha,
            "matrix": format_jobs(self.jobs),
            "scenarios": str(self.scenarios),
            "resolve": ",".join(dict.fromkeys(split_set(name)[0] for name in self.resolved)),
        }


def plan_measurement(
    event: str, payload: Mapping[str, Any], settings: Settings, connect: Callable[[], GitHub]
) -> dict[str, str]:
    """Decide what becomes of an event, as outputs: the action, its reason, and the measurement.

    `connect` is called only where GitHub is asked for the merge base: a pull request that is measured.
    """
    found = plan_event(event, payload, settings.base_branches)
    jobs = settings.list_jobs(is_smoke=found.is_smoke)
    base = found.base_sha
    if found.action is Action.RUN and not found.is_smoke:
        point = fetch_branch_point(connect(), payload["pull_request"])
        base, jobs = point.merge_base, choose_touched(settings, point.changed)
    measurement = Measurement(
        pull_request=found.pull_request,
        head_sha=found.head_sha,
        base_sha=base,
        jobs=jobs,
        scenarios=len(settings.list_jobs()),
        resolved=choose_resolved(settings, jobs),
    )
    # A merge queue without a smoke suite measures nothing.
    return {"action": found.action.value if jobs else "skip", "reason": found.reason, **measurement.outputs}


def choose_touched(settings: Settings, changed: Sequence[str] | None) -> tuple[MatrixJob, ...]:
    """The jobs of a pull request that changes these paths: all without `minutes` in the settings, or where paths are unknown.

    The planning job and the one that reports ask alike, so that no workflow file of a change decides what is left out.
    """
    if settings.minutes is None or changed is None:
        return settings.list_jobs()
    table = read_table()
    chosen = {
        name: choose_listed(table, machine.scenarios, changed, settings.minutes) for name, machine in settings.hardware.items()
    }
    return tuple(job for job in settings.list_jobs() if job.scenario in chosen[job.hardware])


def choose_jobs(settings: Settings, hardware: str, scenarios: str, *, is_night: bool = False) -> tuple[MatrixJob, ...]:
    """Choose jobs by a machine and by scenarios with commas between; empty means all. Raise InputError where one is unknown."""
    named = {word.strip() for word in scenarios.split(",")} - {""}
    machine = [job for job in settings.list_jobs(is_night=is_night) if hardware in ("", job.hardware)]
    chosen = tuple(job for job in machine if not named or job.scenario in named)
    if not chosen or named - {job.scenario for job in chosen}:
        raise InputError("--hardware, --only: the settings have no such machine with such a scenario")
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """What a dispatched run was asked for. `base_sha` is a comparison's, and empty else."""

    task: Task
    target: CommentTarget
    head_sha: str
    base_sha: str
    hardware: str
    scenarios: str
    run_id: int
    run_attempt: int


def admit_dispatch(github: GitHub, asked: Dispatch, settings: Settings) -> tuple[WorkflowRun, Measurement]:
    """Let a dispatched run through: its pull request, with the commits to measure and the jobs that do it.

    Raise InputError for a pull request that `require_open` refuses, StaleError for a head that moved on. A search waits behind
    what decides a pull request: it takes an hour.
    """
    is_search = asked.task is Task.BISECT
    jobs = choose_jobs(settings, asked.hardware, asked.scenarios, is_night=is_search)
    run = _fetch_run(github, asked)
    pull = run.pull or {}
    require_open(pull, settings)
    if is_search:
        require_searchable(pull, jobs)
    measurement = Measurement(
        pull_request=asked.target.pull_request,
        head_sha=asked.head_sha,
        base_sha=asked.base_sha or find_merge_base(github, pull),
        jobs=jobs,
        scenarios=len(settings.list_jobs()),
        resolved=choose_resolved(settings, jobs) if asked.task is Task.MEASURE else (),
    )
    return run, measurement


def _fetch_run(github: GitHub, asked: Dispatch) -> WorkflowRun:
    """A comparison names both of its commits; anything else is of the head as it is now."""
    if (asked.task is Task.COMPARE) is not bool(asked.base_sha):
        raise InputError("--base-sha: a comparison takes one, all 40 digits, and nothing else does")
    head = None if asked.task is Task.COMPARE else asked.head_sha
    found = fetch_run(github, asked.target, head, run_id=asked.run_id, run_attempt=asked.run_attempt)
    return replace(found, head_sha=asked.head_sha)


def require_searchable(pull: Mapping[str, Any], jobs: Sequence[MatrixJob]) -> MatrixJob:
    """The one job that searches. Raise InputError for a fork, each of whose commits would run, and for several jobs."""
    if is_fork(pull):
        raise InputError("a fork's commits are not searched: each of them would run, and a reader of the change sees the last")
    if len(jobs) > 1:
        found = ", ".join(f"`{job.hardware} {job.scenario}`" for job in jobs[:4])
        raise InputError(f"a search takes one machine and one scenario; name one of {found}")
    return jobs[0]


def require_open(pull: Mapping[str, Any], settings: Settings) -> None:
    """Raise InputError for a pull request that is closed, or that goes into a branch which is not measured."""
    if find(pull, "state") != "open":
        raise InputError(f"pull request {find(pull, 'number')} is closed; a measurement of it would decide nothing")
    if fault := find_base_fault(pull, settings.base_branches):
        raise InputError(f"pull request {find(pull, 'number')}: {fault}")


def choose_resolved(settings: Settings, jobs: Sequence[MatrixJob]) -> tuple[str, ...]:
    """Those of the machines of `jobs` whose GPU both arms are asked about."""
    return tuple(name for name in name_machines(jobs) if name in settings.resolved)


def name_machines(jobs: Sequence[MatrixJob]) -> tuple[str, ...]:
    """The machines of some jobs, each once, in the order of their names."""
    return tuple(sorted({job.hardware for job in jobs}))
