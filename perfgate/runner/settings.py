"""`/etc/perfgate/runner.toml`: how this machine is used. It belongs to root, and jobs cannot write it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from perfgate.runner.admission import Rules
from perfgate.scenario.settings import read_settings
from perfgate.storage.schema import STRICT

DEFAULT_PATH = Path("/etc/perfgate/runner.toml")
VARIABLE = "PERFGATE_RUNNER_CONFIG"
ALL_OR_ONE = "a slot has one GPU, or all of its machine: divide the machine into virtual ones or pods (docs/how-to/runners.md)"
Repository = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


def check_network(text: str) -> str:
    """Return an address or a network as systemd reads it. Raise ValueError for what is none."""
    return str(ip_network(text))


def check_place(path: Path) -> Path:
    """Return a path that means the same to root, to the units and to the hooks. Raise ValueError for any other."""
    if not path.is_absolute():
        raise ValueError(f"{str(path)!r} depends on where a command runs; write the whole path, from /")
    return path


def check_user(name: str) -> str:
    """Return the name of a slot's user. Raise ValueError for root: whoever has a slot loses all processes and files."""
    if name == "root":
        raise ValueError("is root, whose processes and files a slot's clean-up would take; give the slot a user of its own")
    return name


def list_gpus(told: object) -> object:
    """Several GPUs are a list; one stands as it is."""
    return [told] if isinstance(told, str) else told


File = Annotated[str, Field(pattern=r"^[\w.-]+\.ya?ml$")]
Place = Annotated[Path, AfterValidator(check_place)]
Network = Annotated[str, AfterValidator(check_network)]
Uuid = Annotated[str, Field(pattern=r"^GPU-[0-9a-fA-F-]{4,40}$")]
Minutes = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Id = Annotated[int, Field(strict=True, gt=0)]
DEFAULT_WORKFLOWS = ("perfgate-pr.yml", "perfgate-dispatch.yml", "perfgate-baseline.yml", "perfgate-runners.yml")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Slot:
    """What jobs of one user run on: one GPU, or all of a machine, for a server over several. No other slot has user or GPU."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$"), AfterValidator(check_user)]
    gpu: Annotated[tuple[Uuid, ...], Field(min_length=1, max_length=16), BeforeValidator(list_gpus)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Registration:
    """The GitHub App that registers runners. `key` is readable by root alone; `scope` is orgs/NAME or repos/OWNER/NAME."""

    app_id: Id
    installation: Id
    key: Place
    scope: Annotated[str, Field(pattern=r"^(orgs/[A-Za-z0-9-]{1,39}|repos/[A-Za-z0-9-]{1,39}/[A-Za-z0-9_.-]{1,100})$")]
    group: Id = 1
    api_url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$")] = "https://api.github.com"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Limits:
    """GPU-minutes of this machine within 24 hours, of a user, a repository and all together; None for as many as there are."""

    user: Minutes | None = None
    repository: Minutes | None = None
    day: Minutes | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Runner:
    """One machine. `state` keeps the marks of closed slots, `cache` the read-only seeds, `engine` is the Python with the
    engine, `models` the folder whose `hub` jobs find their models in, `networks` are those beside the internet that jobs may
    reach, `clock_mhz` what every GPU is locked to before each job, None for the driver's own choice.

    Jobs of `workflows` are let in; what jobs of `seeding` compiled for the main branch may become a seed.

    `pristine` is GitHub's runner as it was unpacked, `folder` holds a copy of it a slot, `hooks` the two scripts around a job.
    """

    repositories: Annotated[tuple[Repository, ...], Field(min_length=1)]
    workflows: tuple[File, ...] = DEFAULT_WORKFLOWS
    seeding: tuple[File, ...] = ("perfgate-baseline.yml",)
    state: Place = Path("/var/lib/perfgate")
    cache: Place = Path("/var/cache/perfgate")
    engine: Place | None = None
    models: Place = Path("/srv/models")
    quarantine_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 300.0
    networks: tuple[Network, ...] = ()
    clock_mhz: Annotated[int, Field(strict=True, ge=100, le=5000)] | None = None
    pristine: Place = Path("/opt/actions-runner")
    folder: Place = Path("/var/lib/perfgate/slots")
    hooks: Place = Path("/opt/perfgate/hooks")
    slots: Mapping[Annotated[str, Field(pattern=r"^[a-z0-9]{1,8}$")], Slot] = Field(default_factory=dict)
    registration: Registration | None = None
    limits: Limits = Field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Two slots of one user could not be told apart when one is cleaned."""
        found = self.slots.values()
        owned = {"user": [slot.user for slot in found], "gpu": [uuid for slot in found for uuid in slot.gpu]}
        for what, values in owned.items():
            if len(set(values)) < len(values):
                raise ValueError(f"slots: the same {what} is named twice; every slot needs its own")

    @property
    def rules(self) -> Rules:
        """What jobs are held against."""
        return Rules(repositories=frozenset(self.repositories), workflows=frozenset(self.workflows))


def load_runner(path: Path | None = None) -> Runner:
    """Read the file at `path`, else the one that $PERFGATE_RUNNER_CONFIG names, else the default one.

    Raise InputError naming what is wrong.
    """
    path = path or Path(os.environ.get(VARIABLE) or DEFAULT_PATH)
    return read_settings(path, Runner, "`perfgate runner init-host` writes one (docs/how-to/runners.md)")
