"""The hook that GitHub's runner calls before a job: a job that is refused is ended, not only failed.

A hook's exit code fails the job, but steps with `if: always()` run all the same. So a refusal kills the worker that would run
them, and leaves a note, of which root makes the mark that closes the slot for a while.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from perfgate.errors import RunnerError
from perfgate.runner.admission import Decision, RunnerJob, decide
from perfgate.runner.fleet.ledger import LEDGER, build_note, leave_note, read_entries
from perfgate.runner.fleet.limits import find_excess
from perfgate.runner.quarantine import leave_refusal
from perfgate.runner.settings import Runner

WORKER = "Runner.Worker"
MAX_EVENT_BYTES = 8 * 2**20


def read_job(environment: Mapping[str, str]) -> RunnerJob:
    """Read what the runner says of the job. The payload is read from its file, never from text that a job could set."""
    path = environment.get("GITHUB_EVENT_PATH", "")
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_EVENT_BYTES + 1)
        payload: Any = json.loads(raw) if len(raw) <= MAX_EVENT_BYTES else None
    except (OSError, ValueError, RecursionError):
        payload = None
    return RunnerJob(
        event=environment.get("GITHUB_EVENT_NAME", ""),
        repository=environment.get("GITHUB_REPOSITORY", ""),
        workflow_ref=environment.get("GITHUB_WORKFLOW_REF", ""),
        payload=payload if isinstance(payload, dict) else {},
    )


def start_job(runner: Runner, environment: Mapping[str, str] = os.environ) -> Decision:
    """Judge the job that is about to start; one that is refused loses its worker, and its slot is closed for a while.

    One that is let in and costs too much loses its worker too; its slot stays open for others. Raise RunnerError, the worker
    ended, where it cannot be told whose time is spent.
    """
    job, home = read_job(environment), Path(environment.get("HOME", "/nonexistent"))
    decision = decide(job, runner.rules)
    if not decision.is_admitted:
        try:
            kill_worker()
        finally:
            leave_refusal(home, decision.reason)
        return decision
    try:
        note = build_note(job, environment)
        excess = find_excess(note, read_entries(runner.state / LEDGER), runner.limits, time.time())
        leave_note(home, note)
    except RunnerError:
        kill_worker()
        raise
    if excess is None:
        return decision
    kill_worker()
    return Decision(is_admitted=False, reason=excess)


def kill_worker() -> None:
    """Kill the worker above this process and everything that it started, except this process.

    Raise RunnerError when there is none: then nothing would stop the job's steps, and the slot's supervisor has to.
    """
    me = psutil.Process()
    worker = next((parent for parent in me.parents() if _name(parent) == WORKER), None)
    if worker is None:
        raise RunnerError(f"refused, but no {WORKER} runs above this hook to be ended; stop the runner's unit")
    spared = {me.pid, *(parent.pid for parent in me.parents())}
    for child in worker.children(recursive=True):
        if child.pid not in spared:
            _kill(child)
    _kill(worker)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise RunnerError(f"process {process.pid} may not be ended by this user; run hook and worker as the same one") from None
