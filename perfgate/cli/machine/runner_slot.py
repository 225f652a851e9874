"""The parts of `perfgate runner` around one job: may it run, what does it run in, and what does it leave."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perfgate.cli.given import Number
from perfgate.cli.output import add_format_option, print_json, print_result, say
from perfgate.errors import GitHubError, InputError, PerfgateError, RunnerError
from perfgate.github.registration import list_waiting, register
from perfgate.runner.cleaning import clean_gpus
from perfgate.runner.fleet.limits import choose_priorities
from perfgate.runner.gpus import read_gpus
from perfgate.runner.health import Severity, judge_health
from perfgate.runner.hook import kill_worker, start_job
from perfgate.runner.quarantine import close_slot, take_refusal
from perfgate.runner.scrub import delete_files, end_processes, end_sessions, find_leftovers, find_processes, find_user
from perfgate.runner.settings import Registration, load_runner
from perfgate.runner.slot import enlist as put
from perfgate.runner.slot import find_slot, list_labels, require_fit
from perfgate.runner.slot import prepare as make_ready
from perfgate.runner.slot import run_once as become


@click.group()
def hook() -> None:
    """Hooks that GitHub's runner calls before and after a job: ACTIONS_RUNNER_HOOK_JOB_STARTED and _COMPLETED."""


@hook.command()
@add_format_option
def started(style: str) -> int:
    """Refuse a job that may not use this machine: kill its worker, because a failed hook alone does not stop its steps."""
    try:
        runner = load_runner()
    except PerfgateError:
        # Without rules nothing is admitted.
        kill_worker()
        raise
    decision = start_job(runner)
    if style == "json":
        print_json({"admitted": decision.is_admitted, "reason": decision.reason})
    else:
        said = "admitted" if decision.is_admitted else "refused"
        say(f"perfgate: {said}: {decision.reason}", err=not decision.is_admitted)
    return 0 if decision.is_admitted else 1


@hook.command()
@add_format_option
def completed(style: str) -> int:
    """Write to the job's log what is left on the GPUs. Root cleans up after the runner has ended."""
    findings = judge_health(read_gpus())
    lines = (f"perfgate: left behind: {finding.where}: {finding.message}" for finding in findings)
    print_result(style, {"findings": findings}, *lines)
    return 0


@click.command()
@click.option(
    "--timeout", "timeout_s", type=Number(min=0), default=100.0, show_default=True, help="Seconds to wait for memory."
)
@add_format_option
def clean(timeout_s: float, style: str) -> int:
    """End this user's processes on the GPUs of CUDA_VISIBLE_DEVICES, and wait until their memory is free.

    Exit code 10 if it is not free in time. Processes of other users are listed and left alone.
    """
    ended, left = clean_gpus(read_gpus, timeout_s)
    print_result(style, {"ended_pids": sorted(ended), "left": left}, f"{len(ended)} processes ended")
    for message in left:
        say(f"perfgate: {message}", err=True)
    return int(Severity.BUSY if left else Severity.OK)


@click.command()
@click.option(
    "--slot",
    "name",
    required=True,
    metavar="NAME",
    help="Slot of the settings; all files and processes of its user are removed.",
)
@click.option("--processes", "keeps_files", is_flag=True, help="End processes only; keep the files for the harvest.")
@add_format_option
def scrub(name: str, *, keeps_files: bool, style: str) -> int:
    """End every process of a slot's user, delete its files and check the result. Exit code 3 if something is left.

    A job that was refused closes the slot for a while.
    """
    runner = load_runner()
    slot, home = find_slot(runner, name), runner.folder / name
    uid = find_user(slot.user)
    end_sessions(slot.user, uid)
    ended = end_processes(uid)
    reason = take_refusal(home)
    deleted = 0 if keeps_files else delete_files(uid, [home])
    if reason:
        # Not before the files are gone: a job that filled the disk would keep root from both.
        close_slot(runner, name, reason)
    if left := find_processes(uid) if keeps_files else find_leftovers(uid):
        raise RunnerError(f"still there after scrubbing: {', '.join(left[:10])}; keep this slot closed")
    said = {"ended_pids": ended, "deleted_entries": deleted, "closed": reason}
    print_result(style, said, f"{len(ended)} processes ended, {deleted} entries deleted")
    return 0


@click.command()
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot of the settings.")
@add_format_option
def prepare(name: str, style: str) -> int:
    """Prepare a slot for one job and register its runner; needs root. If the slot is unfit: exit code 3, nothing registered."""
    folder = make_ready(load_runner(), name, _register)
    print_result(style, {"slot": name, "folder": folder}, folder)
    return 0


@click.command(name="register")
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot of the settings, already prepared.")
@add_format_option
def enlist(name: str, style: str) -> int:
    """Register a prepared slot's runner again, for one job, because its configuration has expired; needs root.

    The labels come from the driver. Only the slot's user can read the configuration file.
    """
    runner = load_runner()
    labels = list_labels(require_fit(find_slot(runner, name)))
    registered = put(runner, name, lambda runner_name: _register(runner_name, labels))
    print_result(style, {"slot": name, "registered": registered}, registered)
    return 0


def _register(name: str, labels: Sequence[str]) -> str:
    """Register under the slot's labels and those of how urgent a job is that it may take."""
    app = build_app()
    try:
        waiting = list_waiting(app, load_runner().repositories)
    except GitHubError as error:
        say(f"perfgate: priorities are not kept for this job: {error}", err=True)
        waiting = ()
    return register(app, name, [*labels, *choose_priorities(waiting, labels)])


def build_app() -> Registration:
    """The app of this machine's settings. Raise InputError when they name none."""
    found = load_runner().registration
    if found is None:
        raise InputError("registration: is missing in the runner's settings; docs/how-to/runners.md shows it")
    return found


@click.command(name="run-once")
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot of the settings.")
def run_once(name: str) -> int:
    """Run GitHub's runner in place of this process, for the one job that the slot was prepared for."""
    become(load_runner(), name)
