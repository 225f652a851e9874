"""Carry out a host plan, as often as wanted: what is as it should be is left alone, what is the administrator's is kept."""

from __future__ import annotations

import ipaddress
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import perfgate
from perfgate.errors import InputError, RunnerError
from perfgate.machine.tools import Tool
from perfgate.runner.settings import ALL_OR_ONE, Runner
from perfgate.runner.setup.host import CONFIG, UNITS, Board, HostPlan, PlannedFile
from perfgate.storage.journal import write_atomically

SHIPPED = ("hooks", "polkit", "systemd", "tmpfiles.d")
_SYSTEM = Tool(timeout_s=120.0, missing=RunnerError, failed=RunnerError, hint="a machine is prepared with systemd's own tools")
_UNINSTALLED = "is not executable"
"""What `systemd-analyze verify` says of a command that is not there yet: a thing to do, no fault of a unit."""


def read_shipped() -> dict[str, str]:
    """Read the files below deploy/, from the installed package or from a checkout of the project."""
    package = Path(perfgate.__file__).parent
    folder = next((path for path in (package / "deploy", package.parent / "deploy") if path.is_dir()), None)
    if folder is None:
        raise InputError(f"{package}: holds no deploy/; install perfgate from its wheel or run it from its checkout")
    paths = (path for name in SHIPPED for path in sorted((folder / name).iterdir()))
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths}


def choose_slots(
    configured: Runner | None, boards: Sequence[Board], wanted: Sequence[Sequence[str]] = ()
) -> dict[str, tuple[Board, ...]]:
    """The slots that the machine's own settings name; on a new machine those that are wanted, by the UUIDs of their GPUs, else
    one a GPU, in the order of their device files.

    Raise InputError for settings that this machine or the units cannot serve, and where others are wanted than they name.
    """
    known = {board.uuid: board for board in boards}
    if configured is None or not configured.slots:
        uuids = wanted or [[board.uuid] for board in sorted(boards, key=lambda board: board.minor)]
        if partial := [slot for slot in uuids if len(boards) > len(slot) > 1]:
            raise InputError(f"--gpu {','.join(partial[0])}: {len(boards)} GPUs are in this machine; {ALL_OR_ONE}")
        return {str(number): tuple(known[uuid] for uuid in slot) for number, slot in enumerate(uuids)}
    if wanted and {frozenset(slot) for slot in wanted} != {frozenset(slot.gpu) for slot in configured.slots.values()}:
        raise InputError("--gpu: /etc/perfgate/runner.toml names other slots and is kept; edit `gpu` of the slots there")
    for name, slot in configured.slots.items():
        if slot.user != f"ghr{name}":
            raise InputError(f"slots.{name}.user: is {slot.user}, but the unit runs slot {name} as ghr{name}")
        if missing := [uuid for uuid in slot.gpu if uuid not in known]:
            raise InputError(f"slots.{name}.gpu: {missing[0]} is not in this machine; compare with `nvidia-smi -L`")
        if len(boards) > len(slot.gpu) > 1:
            raise InputError(f"slots.{name}.gpu: {len(boards)} GPUs are in this machine; {ALL_OR_ONE}")
    return {name: tuple(known[uuid] for uuid in slot.gpu) for name, slot in configured.slots.items()}


def set_up(plan: HostPlan, root: Path) -> Iterator[str]:
    """Do what is planned below `root`, saying each thing. Raise RunnerError for a step that failed; the next run goes on."""
    if os.getuid() != 0:
        raise RunnerError("only root prepares a machine; --dry-run shows what would be done")
    for planned in plan.files:
        yield _put(planned, root)
    for command in list_commands(plan, root):
        yield _run(command)
    yield from mask_managers(plan, root)
    yield verify_units(plan, root)


def describe(plan: HostPlan, root: Path) -> Iterator[str]:
    """Say what `set_up` would do, and do nothing."""
    for planned in plan.files:
        yield f"{_compare(planned, root)} {_below(root, planned.path)}"
    for command in list_commands(plan, root):
        yield f"run {' '.join(command)}"
    yield f"mask the user managers of {', '.join(plan.users)}"


def list_commands(plan: HostPlan, root: Path) -> list[list[str]]:
    """The commands that make users, folders and links from the files."""
    where = [] if root == Path("/") else [f"--root={root}"]
    reload = [] if where else [["systemctl", "daemon-reload"]]
    return [
        ["systemd-sysusers", *where, "perfgate.conf"],
        ["systemd-tmpfiles", *where, "--create", "perfgate.conf", "perfgate-slots.conf"],
        *reload,
        ["systemctl", *where, "--quiet", "enable", *plan.units],
    ]


def mask_managers(plan: HostPlan, root: Path) -> Iterator[str]:
    """Make the user managers of the slots' users unstartable: they would run what a job wrote, outside of the slot's unit."""
    where = [] if root == Path("/") else [f"--root={root}"]
    lines = _below(root, "/etc/passwd").read_text(encoding="utf-8", errors="replace").splitlines()
    numbers = {words[0]: words[2] for line in lines if len(words := line.split(":")) > 2}
    for user in plan.users:
        yield _run(["systemctl", *where, "--quiet", "mask", f"user@{numbers[user]}.service"])


def _below(root: Path, path: object) -> Path:
    return root / str(path).lstrip("/")


def _compare(planned: PlannedFile, root: Path) -> str:
    path = _below(root, planned.path)
    if not path.exists():
        return "write"
    if not path.is_file():
        raise RunnerError(f"{path}: is no file; move it away, then run this again")
    if planned.is_own:
        return "keep"
    is_same = path.read_bytes() == planned.content.encode() and path.stat().st_mode & 0o777 == planned.mode
    return "leave" if is_same else "rewrite"


def _put(planned: PlannedFile, root: Path) -> str:
    path, action = _below(root, planned.path), _compare(planned, root)
    if action in {"write", "rewrite"}:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, planned.content.encode())
            path.chmod(planned.mode)
        except OSError as error:
            raise RunnerError(f"{path}: cannot be written ({error.strerror})") from None
    return f"{action} {path}"


def _run(command: Sequence[str]) -> str:
    words = " ".join(command)
    _SYSTEM.call(command, name=words)
    return f"run {words}"


def verify_units(plan: HostPlan, root: Path) -> str:
    """Let systemd read the units that were written. Raise RunnerError for what it does not understand."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return "verify: systemd-analyze is not installed, so the units are not verified yet"
    units = [str(_below(root, UNITS / name)) for name in plan.units]
    done = _SYSTEM.run([tool, "verify", "--man=no", *units])
    told = [line for line in done.errors.splitlines() if "perfgate-" in line and _UNINSTALLED not in line]
    if told:
        raise RunnerError(f"systemd-analyze verify: {told[0][:300]}")
    return f"verify {len(units)} units: systemd understands them"


def read_resolvers(path: Path = Path("/etc/resolv.conf")) -> tuple[str, ...]:
    """The addresses of this machine's name servers, those on the machine itself left out."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ()
    named = [words[1].partition("%")[0] for words in lines if words[:1] == ["nameserver"] and len(words) > 1]
    return tuple(name for name in named if _is_elsewhere(name))


def _is_elsewhere(name: str) -> bool:
    try:
        return not ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def list_steps(plan: HostPlan, root: Path) -> Iterator[str]:
    """What is left for a person to do, in the order in which it is wanted, each with the command or the place."""
    wanted = (
        ("/opt/perfgate/bin/perfgate", "perfgate itself: deploy/install.sh COMMIT RUNNER_VERSION RUNNER_SHA256"),
        ("/opt/actions-runner/run.sh", "GitHub's runner: deploy/install.sh brings it"),
        ("/srv/models/hub", "the models: HF_HOME=/srv/models hf download NAME, for each hub id that a scenario names"),
        ("/etc/perfgate/app.pem", "the key of the app that registers runners: install -m 400 KEY /etc/perfgate/app.pem"),
    )
    for name, what in wanted:
        if not _below(root, name).exists():
            yield f"missing {name}: {what}"
    yield from _judge_engine(root)
    key = _below(root, "/etc/perfgate/app.pem")
    if key.exists() and key.stat().st_mode & 0o077:
        yield f"open {key}: others may read it; chmod 400 it, and make a new key if others have an account here"
    config = _below(root, CONFIG)
    if config.exists() and "\n[registration]" not in config.read_text(encoding="utf-8"):
        yield f"missing [registration] in {config}: its comment says where the numbers stand"
    yield f"start: systemctl start {' '.join(reversed(plan.units))}"
    yield "see that it is fit: perfgate runner doctor --deep && perfgate runner status"
    yield "calibrate: start the workflow perfgate-baseline by hand, then merge what it proposes until 20 blocks are stored"


def _judge_engine(root: Path) -> Iterator[str]:
    """Whether the engine is there: asked of the machine itself alone, for another root's Python need not run here."""
    python = _below(root, "/opt/perfgate/bin/python")
    if root == Path("/") and python.exists():
        code = "import importlib.metadata as found; found.version('sglang')"
        if _SYSTEM.run([str(python), "-c", code]).code:
            yield f"missing the engine in {python.parent.parent}: deploy/install.sh without PERFGATE_ENGINE brings it, by hash"
