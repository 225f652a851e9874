"""The jobs of a run, as GitHub lists them: where each ran, in which attempt, and what became of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from perfgate.github.client import GitHub
from perfgate.github.runs.run import WorkflowRun
from perfgate.github.settings import MatrixJob
from perfgate.scenario.schema import NAME

HEALTH_STEP = "The machine is fit to measure"
MEASURE_STEP = "Measure"
"""The steps that look at the machine and that measure; the workflow names them too."""

RUNNER = "perfgate-"
"""How the name of every runner begins that `perfgate runner` or the charts of deploy/kubernetes register."""

JOB = re.compile(rf"(?:.* / )?bench (?P<hardware>{NAME}) (?P<scenario>{NAME})")


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
        if find_attempt(found.get(name)) <= find_attempt(job) <= run.run_attempt:
            found[name] = job
    return found


def find_attempt(job: Mapping[str, Any] | None) -> int:
    """The attempt that ran a job; 0 where there is no job."""
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


def find_runner_fault(job: Mapping[str, Any], wanted: MatrixJob) -> str:
    """Why a job counts for no machine of `wanted`, by its labels and its runner; empty where it counts."""
    told = job.get("labels")
    labels = {str(label) for label in told} if isinstance(told, list) else set()
    if not labels and job.get("conclusion") in {"skipped", "cancelled"}:
        return ""
    if missing := [label for label in wanted.labels if label not in labels]:
        return f"its job did not ask for a runner with the label {missing[0]}, so its numbers are not read"
    if (name := job.get("runner_name")) and not str(name).startswith(RUNNER):
        return f"its job ran on {str(name)[:80]!r}, and no runner of these machines is called so; its numbers are not read"
    return ""


def is_sick(job: Mapping[str, Any]) -> bool:
    """Whether the job ended because its machine is not fit to measure."""
    return any(step.get("name") == HEALTH_STEP and step.get("conclusion") == "failure" for step in _list_steps(job))


def has_died(job: Mapping[str, Any]) -> bool:
    """Whether the runner of a failed job went away before it measured, by what GitHub lists of its steps.

    A step that failed is a reason of its own, and a step that measured is never done twice. A runner that went away leaves a
    step without an end. One that refused the job leaves the same, and refuses it again.
    """
    if job.get("conclusion") != "failure" or not job.get("runner_name"):
        return False
    steps = [step for step in _list_steps(job) if step.get("conclusion") != "skipped"]
    is_open = not steps or any(step.get("status") != "completed" for step in steps)
    has_failed = any(step.get("conclusion") in {"failure", "timed_out"} for step in steps)
    begun = {step.get("name") for step in steps if step.get("status") in {"in_progress", "completed"}}
    return is_open and not has_failed and MEASURE_STEP not in begun


def _list_steps(job: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    steps = job.get("steps")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
