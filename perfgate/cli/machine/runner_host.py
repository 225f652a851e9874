"""`perfgate runner init-host`: from a bare machine to one that waits for its app's key."""

from __future__ import annotations

from pathlib import Path

import click
from pydantic import TypeAdapter, ValidationError

from perfgate.cli.output import add_format_option, print_json, say
from perfgate.errors import InputError
from perfgate.runner.gpus import list_boards
from perfgate.runner.settings import Network, Repository, Runner, load_runner
from perfgate.runner.setup.host import CONFIG, Board, Site, plan_host
from perfgate.runner.setup.host_setup import choose_slots, describe, list_steps, read_resolvers, read_shipped, set_up
from perfgate.runner.setup.topology import read_shares

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(name="init-host")
@click.option(
    "--repository", "repositories", multiple=True, metavar="OWNER/NAME", help="Repository whose jobs are admitted; repeatable."
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="UUID[,UUID]",
    help="Make a slot of this GPU only, or one of all GPUs; repeatable (default: of every GPU).",
)
@click.option("--clock-mhz", type=click.IntRange(min=100, max=5000), help="Lock the GPUs' clocks before each job.")
@click.option(
    "--allow-network",
    "networks",
    multiple=True,
    metavar="CIDR",
    help="A private network that jobs may reach; repeatable.",
)
@click.option("--root", type=FOLDER, default=Path("/"), show_default=True, help="Prepare the system below this folder.")
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@add_format_option
def init_host(
    repositories: tuple[str, ...],
    gpus: tuple[str, ...],
    clock_mhz: int | None,
    networks: tuple[str, ...],
    root: Path,
    *,
    dry_run: bool,
    style: str,
) -> int:
    """Prepare this machine; needs root. Sets up a user and a unit for each GPU, folders, hooks and the admission policy.

    It can be repeated: perfgate's own files are updated, /etc/perfgate/runner.toml is written only once. It starts nothing and
    ends with a numbered list of the remaining steps and their commands.
    """
    root = root.resolve()
    configured = load_configured(root)
    boards = list_boards()
    slots = choose_slots(configured, boards, choose_sets(boards, gpus))
    site = Site(
        slots=slots,
        shares=read_shares({name: [board.bus for board in own] for name, own in slots.items()}),
        repositories=choose_repositories(configured, repositories),
        networks=choose_networks(configured, networks),
        resolvers=read_resolvers(),
        clock_mhz=choose_clock(configured, clock_mhz),
    )
    plan = plan_host(read_shipped(), site)
    # Each step is told when it is done: the one that fails is then the next one.
    done, left = [], []
    for line in (describe if dry_run else set_up)(plan, root):
        done.append(line)
        say(line, err=style == "json")
    for number, line in enumerate(list_steps(plan, root), 1):
        left.append(line)
        say(f"{number}. {line}", err=style == "json")
    if style == "json":
        print_json({"dry_run": dry_run, "steps": done, "left": left})
    return 0


def load_configured(root: Path) -> Runner | None:
    """The settings that the machine has already; None on a new one. Raise InputError for settings that are broken."""
    path = root / str(CONFIG).lstrip("/")
    return load_runner(path) if path.exists() else None


def choose_sets(boards: tuple[Board, ...], wanted: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The GPUs of each slot that --gpu names. Raise InputError for one that is not here, or is wanted twice."""
    sets = tuple(tuple(word.strip() for word in text.split(",")) for text in wanted)
    named = [uuid for own in sets for uuid in own]
    if absent := sorted(set(named) - {board.uuid for board in boards}):
        raise InputError(f"--gpu {absent[0][:60]}: is not in this machine; compare with `nvidia-smi -L`")
    if twice := sorted(uuid for uuid in set(named) if named.count(uuid) > 1):
        raise InputError(f"--gpu {twice[0]}: is named twice; every slot needs GPUs of its own")
    return sets


def choose_repositories(configured: Runner | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Whose jobs are let in. Raise InputError for names that the settings would not take, or already contradict."""
    if configured is None:
        try:
            return TypeAdapter(tuple[Repository, ...]).validate_python(names)
        except ValidationError:
            raise InputError("--repository: give OWNER/NAME, for example sgl-project/sglang") from None
    if names and set(names) != set(configured.repositories):
        raise InputError("--repository: /etc/perfgate/runner.toml names others and is kept; edit it there")
    return configured.repositories


def choose_networks(configured: Runner | None, networks: tuple[str, ...]) -> tuple[str, ...]:
    """Which networks jobs reach. Raise InputError for one that is none, or where the settings name others."""
    try:
        found = TypeAdapter(tuple[Network, ...]).validate_python(networks)
    except ValidationError:
        raise InputError("--allow-network: give a network such as 10.1.2.0/24 or an address; host bits must be 0") from None
    if configured is None:
        return found
    if found and set(found) != set(configured.networks):
        raise InputError("--allow-network: /etc/perfgate/runner.toml names others and is kept; edit `networks` there")
    return configured.networks


def choose_clock(configured: Runner | None, mhz: int | None) -> int | None:
    """What the GPUs are locked to. Raise InputError where the settings name another clock."""
    if configured is None:
        return mhz
    if mhz not in {None, configured.clock_mhz}:
        raise InputError("--clock-mhz: /etc/perfgate/runner.toml is kept; edit `clock_mhz` there")
    return configured.clock_mhz
