"""The parts of `perfgate runner` around one job: may it run, what does it run in, and what does it leave."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from perfgate.errors import InputError, PerfgateError, RunnerError

FILE = click.Path(path_type=Path)


@click.group()
def hook() -> None:
    """What GitHub's runner calls around a job: ACTIONS_RUNNER_HOOK_JOB_STARTED and _COMPLETED."""


@hook.command()
def started() -> int:
    """Refuse a job that may not use this machine: its worker is killed, for a failed hook alone would not stop its steps."""
    from perfgate.runner.hook import find_quarantine, kill_worker, start_job  # noqa: PLC0415 - as for other commands
    from perfgate.runner.settings import load_runner  # noqa: PLC0415

    try:
        runner = load_runner()
        closed = find_quarantine(runner, os.getuid())
        if closed:
            raise RunnerError(f"this slot is closed: {closed}")
    except PerfgateError:
        # Without rules nothing is admitted.
        kill_worker()
        raise
    decision = start_job(runner)
    click.echo(
        f"perfgate: {'admitted' if decision.is_admitted else 'refused'}: {decision.reason}", err=not decision.is_admitted
    )
    return 0 if decision.is_admitted else 1


@hook.command()
def completed() -> int:
    """Say in the job's log what is left on the GPUs. Cleaning is root's, after the runner has ended."""
    from perfgate.runner.gpus import read_gpus  # noqa: PLC0415
    from perfgate.runner.health import judge_health  # noqa: PLC0415 - as above

    for finding in judge_health(read_gpus()):
        click.echo(f"perfgate: left behind: {finding.where}: {finding.message}")
    return 0


@click.command()
@click.option("--user", required=True, metavar="NAME", help="The slot's own user; everything of it goes.")
@click.option("--folder", "folders", multiple=True, type=FILE, help="Folder of the slot to empty; repeatable.")
def scrub(user: str, folders: tuple[Path, ...]) -> int:
    """End every process of a slot's user and delete its files, then look again. Exit code 3 when something is left."""
    from perfgate.runner.scrub import delete_files, end_processes, find_leftovers, find_user  # noqa: PLC0415 - as above

    uid = find_user(user)
    ended = end_processes(uid)
    deleted = delete_files(uid, folders)
    if left := find_leftovers(uid):
        raise RunnerError(f"still there after scrubbing: {', '.join(left[:10])}; keep this slot closed")
    click.echo(f"{len(ended)} processes ended, {deleted} entries deleted")
    return 0


@click.group()
def cache() -> None:
    """Keep read-only seeds of compile caches, and give each job a copy of its own."""


@cache.command()
@click.argument("source", type=FILE)
@click.option("--key", required=True, help="Name of the seed: image, driver, architecture.")
def seed(source: Path, key: str) -> int:
    """Copy SOURCE, a cache that the main branch filled, into a read-only seed with a digest of every file."""
    from perfgate.runner.seeds import seed as write  # noqa: PLC0415 - as above

    click.echo(write(source, _find_cache(), key))
    return 0


@cache.command()
@click.option("--key", required=True)
def verify(key: str) -> int:
    """Check every file of a seed."""
    from perfgate.runner.seeds import verify as check  # noqa: PLC0415 - as above

    click.echo(f"{key}: {check(_find_cache(), key)} files, whole")
    return 0


@cache.command()
@click.argument("target", type=FILE)
@click.option("--key", required=True)
def lend(target: Path, key: str) -> int:
    """Check a seed and copy it to TARGET, for one job to write in."""
    from perfgate.runner.seeds import lend as copy  # noqa: PLC0415 - as above

    click.echo(f"{target}: {copy(_find_cache(), key, target)} files")
    return 0


@cache.command()
@click.option("--keep", type=click.IntRange(min=0), default=3, show_default=True, help="How many of the newest stay.")
def prune(keep: int) -> int:
    """Delete old seeds and what a broken run left."""
    from perfgate.runner.seeds import prune as delete  # noqa: PLC0415 - as above

    for name in delete(_find_cache(), keep):
        click.echo(f"{name}: deleted")
    return 0


def _find_cache() -> Path:
    from perfgate.runner.settings import load_runner  # noqa: PLC0415 - as above

    return load_runner().cache


@click.command()
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
@click.option("--engine", metavar="PYTHON", help="Python with the engine (default: the settings' engine, else this one).")
def arm(source: Path, target: Path, engine: str | None) -> int:
    """Build an environment at TARGET that runs the package in SOURCE over the machine's engine."""
    from perfgate.runner.arms import build_arm  # noqa: PLC0415 - as above
    from perfgate.runner.settings import load_runner  # noqa: PLC0415

    if engine is None:
        try:
            configured = load_runner().engine
        except InputError:
            configured = None
        engine = str(configured or sys.executable)
    click.echo(build_arm(source, target, Path(engine)))
    return 0


@click.command()
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot of the settings.")
def prepare(name: str) -> int:
    """Make a slot ready for one job and register its runner, as root. Exit code 3, and nothing registered, if it is unfit."""
    from perfgate.runner.settings import load_runner  # noqa: PLC0415 - as above
    from perfgate.runner.slot import prepare as make_ready  # noqa: PLC0415

    click.echo(make_ready(load_runner(), name, _register))
    return 0


def _register(name: str, labels: Sequence[str]) -> str:
    from perfgate.github.registration import App, register  # noqa: PLC0415 - as above
    from perfgate.runner.settings import load_runner  # noqa: PLC0415

    found = load_runner().registration
    if found is None:
        raise InputError("registration: is missing in the runner's settings; docs/runners.md shows it")
    app = App(
        app_id=found.app_id,
        installation=found.installation,
        key=found.key,
        scope=found.scope,
        group=found.group,
        api_url=found.api_url,
    )
    return register(app, name, labels)


@click.command(name="run-once")
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot of the settings.")
def run_once(name: str) -> int:
    """Become GitHub's runner for the one job that the slot was prepared for."""
    from perfgate.runner.settings import load_runner  # noqa: PLC0415 - as above
    from perfgate.runner.slot import run_once as become  # noqa: PLC0415

    become(load_runner(), name)
