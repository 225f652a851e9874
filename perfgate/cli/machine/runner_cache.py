"""`perfgate runner cache`: compile caches as read-only seeds, a copy for each job, and new seeds from the main branch alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from perfgate.cli.machine.runner_slot import build_app
from perfgate.cli.output import FILE, add_format_option, print_result
from perfgate.errors import RunnerError
from perfgate.github.registration import connect_app, read_runners
from perfgate.runner.harvest import Claim, Origin, build_claim, find_fault
from perfgate.runner.harvest import harvest as take
from perfgate.runner.harvest import offer as leave
from perfgate.runner.scrub import find_processes, find_user
from perfgate.runner.settings import load_runner
from perfgate.runner.setup.seeds import find_key, find_newest, make_empty, renew
from perfgate.runner.setup.seeds import lend as copy
from perfgate.runner.setup.seeds import prune as delete
from perfgate.runner.setup.seeds import seed as write
from perfgate.runner.setup.seeds import verify as check
from perfgate.runner.slot import find_registered, find_slot

KEEP = click.option("--keep", type=click.IntRange(min=0), default=3, show_default=True, help="How many of the newest to keep.")


@click.group()
def cache() -> None:
    """Keep read-only seeds of compile caches, and give each job a copy of its own."""


@cache.command()
@add_format_option
def key(style: str) -> int:
    """Print the name of this machine's seeds: architecture, driver and a digest of the engine's packages."""
    found = find_key(load_runner())
    print_result(style, {"key": found}, found)
    return 0


@cache.command()
@click.argument("source", type=FILE)
@click.option("--key", required=True, help="Name of the seed: image, driver, architecture.")
@add_format_option
def seed(source: Path, key: str, style: str) -> int:
    """Copy SOURCE, a cache filled by the main branch, into a read-only seed with a digest of every file."""
    made = write(source, load_runner().cache, key)
    print_result(style, {"seed": made}, made)
    return 0


@cache.command()
@click.option("--key", required=True)
@add_format_option
def verify(key: str, style: str) -> int:
    """Check every file of a seed."""
    count = check(load_runner().cache, key)
    print_result(style, {"key": key, "files": count}, f"{key}: {count} files, whole")
    return 0


@cache.command()
@click.argument("target", type=FILE)
@click.option("--key", help="Name of the seed (default: the newest for this machine's driver and engine).")
@add_format_option
def lend(target: Path, key: str | None, style: str) -> int:
    """Check a seed and copy it to TARGET, for one job. Without a seed, TARGET is empty."""
    folder = load_runner().cache
    name = key or find_newest(folder, wanted := find_key(load_runner()))
    if name is None:
        make_empty(target)
        said = {"target": target, "key": None, "files": 0}
        print_result(style, said, f"{target}: empty, as there is no seed for {wanted}")
        return 0
    count = copy(folder, name, target)
    print_result(style, {"target": target, "key": name, "files": count}, f"{target}: {count} files of {name}")
    return 0


@cache.command()
@click.argument("source", type=FILE)
@add_format_option
def offer(source: Path, style: str) -> int:
    """Offer SOURCE, the kernels that this job compiled, to root. It becomes a seed if GitHub confirms a job of the main
    branch.
    """
    place = leave(source, Path.home(), build_claim(os.environ))
    print_result(style, {"offer": place}, place)
    return 0


@cache.command()
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot (as in the settings) whose job has ended.")
@KEEP
@add_format_option
def harvest(name: str, keep: int, style: str) -> int:
    """Make a seed from the offer of the slot's last job; needs root. Exit code 3 and no seed unless it was a job of main."""
    runner = load_runner()
    if alive := find_processes(find_user(find_slot(runner, name).user)):
        raise RunnerError(
            f"{alive[0]} of slot {name} still runs and could change the files; run `perfgate runner scrub --processes` first"
        )
    home = runner.folder / name

    def keep_seed(files: Path) -> Path:
        made = renew(files, runner.cache, find_key(runner), time.time())
        delete(runner.cache, keep)
        return made

    registered = find_registered(runner, name) if home.exists() else ""
    said = take(home, registered, lambda claim: ask_origin(claim, registered), keep_seed)
    print_result(style, {"slot": name, "said": said}, said)
    return 0


def ask_origin(claim: Claim, registered: str) -> str | None:
    """Ask GitHub which job ran here; return why its cache must not be kept, None when it may be."""
    runner = load_runner()
    if claim.repository not in runner.repositories:
        return f"{claim.repository} may not use this machine"
    run, runners = read_runners(connect_app(build_app()), claim.repository, claim.run_id, claim.run_attempt)
    return find_fault(claim, Origin(run=run, runners=runners), registered, runner.rules, runner.seeding)


@cache.command()
@KEEP
@add_format_option
def prune(keep: int, style: str) -> int:
    """Delete old seeds and incomplete ones."""
    deleted = delete(load_runner().cache, keep)
    print_result(style, {"deleted": deleted}, *(f"{name}: deleted" for name in deleted))
    return 0
