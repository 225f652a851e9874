"""What a machine needs before its first job: users, folders, hooks, units and the admission policy, as a plan.

Pure: nothing here looks at the machine or changes it. What systemd can do from a file is left to it: users (sysusers.d),
folders and their rights (tmpfiles.d), units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfgate.errors import InputError

CONFIG = PurePosixPath("/etc/perfgate/runner.toml")
UNITS = PurePosixPath("/etc/systemd/system")
HOOKS = PurePosixPath("/opt/perfgate/hooks")
CLOCKS = "perfgate-clocks.service"
_USER_LINE = 'u ghr{name} - "perfgate slot {name}" /var/lib/perfgate/slots/{name} /usr/sbin/nologin\nm ghr{name} perfgate\n'
_GPU = """# Written by `perfgate runner init-host`: jobs of this slot reach this GPU alone.
[Service]
DevicePolicy=closed
DeviceAllow=/dev/nvidia{minor} rw
DeviceAllow=/dev/nvidiactl rw
DeviceAllow=/dev/nvidia-uvm rw
"""
_CLOCK = """# Written by `perfgate runner init-host --clock-mhz`.
[Service]
Environment=PERFGATE_CLOCK_MHZ={mhz}
"""
_POLICY = """# Who may use this machine, and how. Written once by `perfgate runner init-host`; it is yours to edit from here on.
repositories = [{repositories}]
engine = "/opt/perfgate/bin/python"

# Without this nothing registers; docs/runners.md says where the numbers come from.
# [registration]
# app_id = 123456
# installation = 7654321
# key = "/etc/perfgate/app.pem"
# scope = "repos/OWNER/NAME"
"""
_SLOT = """
[slots.{name}]
user = "ghr{name}"
gpu = "{uuid}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One GPU: its UUID, and the minor number that its device file carries."""

    uuid: str
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file to be there. One that is the administrator's own is written once and never again."""

    path: PurePosixPath
    content: str
    mode: int = 0o644
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """Files first, then users and folders from them; `units` are started at the next boot."""

    files: tuple[PlannedFile, ...]
    units: tuple[str, ...]


def plan_host(
    shipped: Mapping[str, str], slots: Mapping[str, Board], repositories: Sequence[str], clock_mhz: int | None
) -> HostPlan:
    """Plan a machine. `shipped` are the texts below deploy/ by their path there; `slots` are names and what each one owns."""
    if not slots:
        raise InputError("no GPU and no slot: nothing to prepare; load NVIDIA's driver first, or name the GPUs with --gpu")
    units = [f"perfgate-runner@{name}.service" for name in sorted(slots)]
    return HostPlan(
        files=(
            PlannedFile(path=PurePosixPath("/etc/sysusers.d/perfgate.conf"), content=_format_users(slots)),
            *(_place(name, text) for name, text in sorted(shipped.items())),
            *(_plan_gpu(name, board) for name, board in sorted(slots.items())),
            *(() if clock_mhz is None else (_plan_clock(clock_mhz),)),
            PlannedFile(path=CONFIG, content=format_policy(slots, repositories), is_own=True),
        ),
        units=(*units, "perfgate-status.timer", *(() if clock_mhz is None else (CLOCKS,))),
    )


def _format_users(slots: Mapping[str, Board]) -> str:
    return "g perfgate -\n" + "".join(_USER_LINE.format(name=name) for name in sorted(slots))


def _place(name: str, text: str) -> PlannedFile:
    """Where a shipped file goes on a machine."""
    folder, _, file = name.partition("/")
    if folder == "hooks":
        return PlannedFile(path=HOOKS / file, content=text, mode=0o755)
    places = {"systemd": UNITS, "tmpfiles.d": PurePosixPath("/etc/tmpfiles.d")}
    return PlannedFile(path=places[folder] / file, content=text)


def _plan_gpu(name: str, board: Board) -> PlannedFile:
    path = UNITS / f"perfgate-runner@{name}.service.d" / "gpu.conf"
    return PlannedFile(path=path, content=_GPU.format(minor=board.minor))


def _plan_clock(mhz: int) -> PlannedFile:
    return PlannedFile(path=UNITS / f"{CLOCKS}.d" / "clock.conf", content=_CLOCK.format(mhz=mhz))


def format_policy(slots: Mapping[str, Board], repositories: Sequence[str]) -> str:
    """Write a first `runner.toml`: who is let in, and one slot a GPU."""
    if not repositories:
        raise InputError("--repository: name at least one, OWNER/NAME; nobody else's jobs are let in")
    head = _POLICY.format(repositories=", ".join(f'"{name}"' for name in repositories))
    return head + "".join(_SLOT.format(name=name, uuid=board.uuid) for name, board in sorted(slots.items()))
