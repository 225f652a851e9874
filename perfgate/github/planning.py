"""What a workflow measures next: the jobs of an event, or those that a maintainer admits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfgate.errors import InputError
from perfgate.github.client import GitHub
from perfgate.github.comment.publisher import CommentTarget, require_head
from perfgate.github.events import Action, find_merge_base, plan_event
from perfgate.github.runs import WorkflowRun, fetch_run
from perfgate.github.settings import MatrixJob, Settings, format_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The jobs that a workflow starts, the change that they measure, and how many scenarios share its error budget.

    `pull_request` is 0 in a merge queue.
    """

    pull_request: int
    head_sha: str
    base_sha: str
    jobs: tuple[MatrixJob, ...]
    scenarios: int

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs of a step that the jobs behind it read."""
        return {
            "pull_request": str(self.pull_request),
            "head_sha": self.head_sha,
            "base_sha": self.base_sha,
            "matrix": format_jobs(self.jobs),
            "scenarios": str(self.scenarios),
        }


def plan_measurement(
    event: str, payload: Mapping[str, Any], settings: Settings, connect: Callable[[], GitHub]
) -> dict[str, str]:
    """Decide what becomes of an event, as outputs: the action, its reason, and the measurement.

    `connect` is called only where GitHub is asked for the merge base: a pull request that is measured.
    """
    found = plan_event(event, payload)
    jobs = settings.list_jobs(is_smoke=found.is_smoke)
    base = found.base_sha
    if found.action is Action.RUN and not found.is_smoke:
        base = find_merge_base(connect(), payload["pull_request"])
    measurement = Measurement(
        pull_request=found.pull_request,
        head_sha=found.head_sha,
        base_sha=base,
        jobs=jobs,
        scenarios=len(settings.list_jobs()),
    )
    # A merge queue without a smoke suite measures nothing.
    return {"action": found.action.value if jobs else "skip", "reason": found.reason, **measurement.outputs}


def choose_jobs(settings: Settings, hardware: str, scenarios: str) -> tuple[MatrixJob, ...]:
    """Choose jobs by a machine and by scenarios with commas between; empty means all. Raise InputError where one is unknown."""
    named = {word.strip() for word in scenarios.split(",")} - {""}
    machine = [job for job in settings.list_jobs() if hardware in ("", job.hardware)]
    chosen = tuple(job for job in machine if not named or job.scenario in named)
    if not chosen or named - {job.scenario for job in chosen}:
        raise InputError("--hardware, --only: the settings have no such machine with such a scenario")
    return chosen


def admit_run(
    github: GitHub, target: CommentTarget, head_sha: str, *, run_id: int, run_attempt: int
) -> tuple[WorkflowRun, str]:
    """Return the run that measures `head_sha` and the commit to compare with. Raise StaleError when it is not the head."""
    require_head(github, target, head_sha)
    run = fetch_run(github, target, head_sha, run_id=run_id, run_attempt=run_attempt)
    return run, find_merge_base(github, run.pull or {})


def name_machines(jobs: Sequence[MatrixJob]) -> tuple[str, ...]:
    """The machines of some jobs, each once, in the order of their names."""
    return tuple(sorted({job.hardware for job in jobs}))
