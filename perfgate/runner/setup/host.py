"""What a machine needs before its first job: users, folders, hooks, units and the admission policy, as a plan.

Pure: nothing here looks at the machine or changes it. What systemd can do from a file is left to it: users (sysusers.d),
folders and their rights (tmpfiles.d), units.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfgate.errors import InputError
from perfgate.runner.setup.topology import Share

CONFIG = PurePosixPath("/etc/perfgate/runner.toml")
UNITS = PurePosixPath("/etc/systemd/system")
HOOKS = PurePosixPath("/opt/perfgate/hooks")
PLACES = {
    "systemd": UNITS,
    "tmpfiles.d": PurePosixPath("/etc/tmpfiles.d"),
    "polkit": PurePosixPath("/etc/polkit-1/rules.d"),
}
# No home: a job writes its own folder, and no login, mail or user manager of that name may find its settings there.
_USER_LINE = 'u ghr{name} - "perfgate slot {name}" - /usr/sbin/nologin\nm ghr{name} perfgate\n'
_LOCK_LINE = "f /run/perfgate/gpu-{uuid}.lock 0640 root ghr{name}\n"
_GPU = """# Written by `perfgate runner init-host`: what jobs of this slot reach, of this machine and of its networks.
[Service]
SupplementaryGroups=ghr{name}
{devices}
DeviceAllow=/dev/nvidiactl rw
DeviceAllow=/dev/nvidia-uvm rw
MemoryMax={memory_bytes}
"""
_POLICY = """# Who may use this machine, and how. Written once by `perfgate runner init-host`; it is yours to edit from here on.
repositories = [{repositories}]
engine = "/opt/perfgate/bin/python"

# The clock that every GPU is locked to before each job; without it the driver chooses. A noise band counts for one of these.
{clock}

# Networks of the site that jobs may reach, such as that of a proxy; the resolvers of /etc/resolv.conf are let in as they are.
# `perfgate runner init-host` writes them into the units.
networks = [{networks}]

# Without this nothing registers. Where the numbers stand: app_id on the app's own page (Settings, Developer settings, GitHub
# Apps); installation is the last number in the address of its installation (Settings, GitHub Apps, Configure); group by
# `gh api orgs/ORG/actions/runner-groups --jq '.runner_groups[] | {{id, name}}'`, 1 being the default one.
# [registration]
# app_id = 123456
# installation = 7654321
# key = "/etc/perfgate/app.pem"
# scope = "repos/OWNER/NAME"
# group = 1
"""
_SLOT = """
[slots.{name}]
user = "ghr{name}"
gpu = {gpu}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One GPU: its UUID, the minor number that its device file carries, and where it sits."""

    uuid: str
    minor: int
    bus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file to be there. One that is the administrator's own is written once and never again."""

    path: PurePosixPath
    content: str
    mode: int = 0o644
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """Files first, then users and folders from them; `units` are started at the next boot, `users` are those of the slots."""

    files: tuple[PlannedFile, ...]
    units: tuple[str, ...]
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What differs between machines: slots by name with their GPUs and their part of the machine, who is let in, and networks.

    `networks` are those that jobs may reach though they are not the internet, `resolvers` those of name servers.
    """

    slots: Mapping[str, Sequence[Board]]
    shares: Mapping[str, Share]
    repositories: Sequence[str]
    networks: Sequence[str] = ()
    resolvers: Sequence[str] = ()
    clock_mhz: int | None = None


def plan_host(shipped: Mapping[str, str], site: Site) -> HostPlan:
    """Plan a machine. `shipped` are the texts below deploy/ by their path there."""
    slots = site.slots
    if not slots:
        raise InputError("no GPU and no slot: nothing to prepare; load NVIDIA's driver and compare with `nvidia-smi -L`")
    units = [f"perfgate-runner@{name}.service" for name in sorted(slots)]
    return HostPlan(
        files=(
            PlannedFile(path=PurePosixPath("/etc/sysusers.d/perfgate.conf"), content=_format_users(slots)),
            *(_place(name, text) for name, text in sorted(shipped.items())),
            PlannedFile(path=PurePosixPath("/etc/tmpfiles.d/perfgate-slots.conf"), content=_format_locks(slots)),
            *(_plan_slot(name, site) for name in sorted(slots)),
            PlannedFile(path=CONFIG, content=format_policy(site), is_own=True),
        ),
        users=tuple(f"ghr{name}" for name in sorted(slots)),
        units=(*units, "perfgate-status.timer"),
    )


def _format_users(slots: Iterable[str]) -> str:
    return "g perfgate -\n" + "".join(_USER_LINE.format(name=name) for name in sorted(slots))


def _place(name: str, text: str) -> PlannedFile:
    """Where a shipped file goes on a machine."""
    folder, _, file = name.partition("/")
    if folder == "hooks":
        return PlannedFile(path=HOOKS / file, content=text, mode=0o755)
    return PlannedFile(path=PLACES[folder] / file, content=text)


def _format_locks(slots: Mapping[str, Sequence[Board]]) -> str:
    lines = (_LOCK_LINE.format(name=name, uuid=board.uuid) for name, boards in sorted(slots.items()) for board in boards)
    return "# Written by `perfgate runner init-host`: the locks of each slot's GPUs, for that slot alone.\n" + "".join(lines)


def _plan_slot(name: str, site: Site) -> PlannedFile:
    path, share = UNITS / f"perfgate-runner@{name}.service.d" / "gpu.conf", site.shares[name]
    devices = "\n".join(f"DeviceAllow=/dev/nvidia{board.minor} rw" for board in site.slots[name])
    lines = [_GPU.format(name=name, devices=devices, memory_bytes=share.memory_bytes)]
    lines += [] if share.cpus is None else [f"AllowedCPUs={share.cpus}\n"]
    lines += [] if share.nodes is None else [f"AllowedMemoryNodes={share.nodes}\n"]
    lines += [f"IPAddressAllow={network}\n" for network in (*site.resolvers, *site.networks)]
    return PlannedFile(path=path, content="".join(lines))


def format_policy(site: Site) -> str:
    """Write a first `runner.toml`: who is let in, and the slots."""
    if not site.repositories:
        raise InputError("--repository: name at least one, OWNER/NAME; jobs of other repositories are refused")
    quote = ", ".join
    head = _POLICY.format(
        repositories=quote(f'"{name}"' for name in site.repositories),
        networks=quote(f'"{name}"' for name in site.networks),
        clock="# clock_mhz = 1500" if site.clock_mhz is None else f"clock_mhz = {site.clock_mhz}",
    )
    slots = {name: [board.uuid for board in boards] for name, boards in sorted(site.slots.items())}
    return head + "".join(
        _SLOT.format(name=name, gpu=json.dumps(uuids if len(uuids) > 1 else uuids[0])) for name, uuids in slots.items()
    )
