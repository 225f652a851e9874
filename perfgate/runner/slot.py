"""One slot, one job: a fresh folder for GitHub's runner, its configuration handed over once, its environment chosen by root."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from perfgate.errors import InputError, RunnerError
from perfgate.machine.accelerators import name_set
from perfgate.machine.lock import find_lock_folder
from perfgate.runner.gpus import diagnose, lock_clocks, read_gpus, read_kernel_log
from perfgate.runner.health import Reading, judge_health
from perfgate.runner.quarantine import close_slot, find_quarantine
from perfgate.runner.scrub import delete_tree, find_user
from perfgate.runner.settings import ALL_OR_ONE, Runner, Slot
from perfgate.runner.slots import Wish, hold

CONFIG_FILE = "jit"
RUNNER_DIR = "runner"
RUN = "run.sh"
VARIABLE = "ACTIONS_RUNNER_INPUT_JITCONFIG"
_MEETING = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
DEEP_S = 86_400.0
"""How long what DCGM said of a GPU counts, good or bad."""


def find_slot(runner: Runner, name: str) -> Slot:
    """The settings of a slot. Raise InputError for one that is not in the file."""
    if name not in runner.slots:
        raise InputError(f"--slot {name[:20]}: not in the settings, which have {', '.join(sorted(runner.slots)) or 'none'}")
    return runner.slots[name]


def prepare(runner: Runner, name: str, register: Callable[[str, Sequence[str]], str]) -> Path:
    """Make the slot ready for one job. `register` gets a name and labels and returns the configuration.

    Raise RunnerError, and register nothing, where the slot is closed or a GPU of it unfit: a faulty machine takes no job. No
    job can come yet, so this is when GPUs are tested in depth.
    """
    slot = find_slot(runner, name)
    uid = find_user(slot.user)
    if closed := find_quarantine(runner, name):
        raise RunnerError(f"slot {name} is closed: {closed}")
    readings = require_fit(slot)
    if runner.clock_mhz is not None:
        for uuid in slot.gpu:
            lock_clocks(uuid, runner.clock_mhz)
    _look_deeper(runner, name, [reading.index for reading in readings])
    folder = runner.folder / name
    delete_tree(folder)
    try:
        shutil.copytree(runner.pristine, folder / RUNNER_DIR, symlinks=True)
        # What cannot run is not registered: each try would leave a runner at GitHub.
        (folder / RUNNER_DIR / RUN).stat()
        (folder / RUNNER_DIR / ".env").write_text(format_environment(runner, slot), encoding="utf-8")
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, uid, -1, follow_symlinks=False)
        folder.chmod(0o700)
    except OSError as error:
        # Of a disk that got full, the first file that found no room stands for the thousands behind it.
        reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error
        raise RunnerError(f"{folder}: cannot be prepared ({reason}); is {runner.pristine} GitHub's unpacked runner?") from None
    enlist(runner, name, lambda registered: register(registered, list_labels(readings)))
    return folder


def _look_deeper(runner: Runner, name: str, gpus: Sequence[int]) -> None:
    """Once a day, and while nothing on the machine measures, have DCGM load the slot's GPUs.

    Raise RunnerError for what it finds, which closes the slot until the next look.
    """
    seen = runner.state / f"looked-{name}"
    # A look in the future is of a clock that was wrong then.
    if shutil.which("dcgmi") is None or (seen.exists() and 0 <= time.time() - seen.stat().st_mtime < DEEP_S):
        return
    try:
        with hold(Wish(is_exclusive=True, timeout_s=0.0), find_lock_folder()):
            findings = diagnose(gpus)
    except RunnerError:
        return  # a measurement runs: the GPUs are tested before a later job
    if findings:
        close_slot(runner, name, findings[0].message, for_s=DEEP_S)
        numbers = ", ".join(map(str, gpus))
        raise RunnerError(f"not fit, so not registered: GPU {numbers}: {findings[0].message}")
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.touch()


def list_labels(readings: Sequence[Reading]) -> tuple[str, ...]:
    """What the slot's runner is asked for by: the label of its GPUs comes from the driver. They are of one kind."""
    return ("self-hosted", "linux", "perfgate", name_set(readings[0].label, len(readings)))


def enlist(runner: Runner, name: str, register: Callable[[str], str]) -> str:
    """Register the prepared slot for one job, under a name that no other job ever had, and leave the configuration there."""
    slot = find_slot(runner, name)
    registered = f"perfgate-{os.uname().nodename[:40]}-{name}-{secrets.token_hex(4)}"
    path = runner.folder / name / CONFIG_FILE
    if not path.parent.is_dir():
        raise RunnerError(f"slot {name} is not prepared; `perfgate runner prepare --slot {name}` does that, and registers it")
    config = register(registered)
    try:
        find_name_file(runner, name).write_text(registered, encoding="utf-8")
        path.unlink(missing_ok=True)
        _write_secret(path, config, find_user(slot.user))
    except OSError as error:
        raise RunnerError(f"{path}: cannot be written ({error})") from None
    return registered


def find_registered(runner: Runner, name: str) -> str:
    """The name under which the slot's runner was registered last. Raise RunnerError when it never was."""
    try:
        return find_name_file(runner, name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunnerError(f"slot {name} was never registered on this machine ({error.strerror})") from None


def find_name_file(runner: Runner, name: str) -> Path:
    """Where the name of the slot's runner stands: beside the slot's folder and not in it, where only root writes."""
    return runner.folder / f"{name}.name"


def require_fit(slot: Slot) -> tuple[Reading, ...]:
    """The readings of a slot's GPUs. Raise RunnerError for one that would spoil a measurement."""
    known = {reading.uuid: reading for reading in read_gpus()}
    if missing := [uuid for uuid in slot.gpu if uuid not in known]:
        raise RunnerError(f"GPU {missing[0]} is not in this machine; compare with `nvidia-smi -L`")
    readings = tuple(known[uuid] for uuid in slot.gpu)
    if (why := explain_set(readings, len(known))) is not None:
        raise RunnerError(why)
    if findings := judge_health(readings, kernel_log=read_kernel_log() or "", is_whole=False):
        raise RunnerError(f"not fit, so not registered: {findings[0].where}: {findings[0].message}")
    return readings


def explain_set(own: Sequence[Reading], there: int) -> str | None:
    """Say why a slot cannot have these GPUs of the `there` in its machine; None where it can."""
    if there > len(own) > 1:
        return f"{there} GPUs are in this machine, and the slot has {len(own)}; {ALL_OR_ONE}"
    if len(kinds := sorted({reading.label for reading in own})) > 1:
        return f"the GPUs of one slot are {' and '.join(kinds)}; give it GPUs of one kind"
    return None


def format_environment(runner: Runner, slot: Slot) -> str:
    """What GitHub's runner gives to every job of this slot."""
    # Engines take no UUID here for several GPUs (docs/upstream/uuid_all_reduce.py), and all of the machine are the slot's own.
    # Their ranks meet at the machine's own address, which the unit denies in a private network; all are in one machine.
    chosen = {"CUDA_VISIBLE_DEVICES": slot.gpu[0]} if len(slot.gpu) == 1 else dict.fromkeys(_MEETING, "lo")
    values = {
        "ACTIONS_RUNNER_HOOK_JOB_STARTED": runner.hooks / "job-started.sh",
        "ACTIONS_RUNNER_HOOK_JOB_COMPLETED": runner.hooks / "job-completed.sh",
        **chosen,
        # Not HF_HOME, below which the hub's libraries also write.
        "HF_HUB_CACHE": runner.models / "hub",
        "HF_HUB_OFFLINE": 1,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _write_secret(path: Path, text: str, uid: int) -> None:
    """Write a file that one user may read, and that never belonged to another user."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchown(file.fileno(), uid, -1)
        file.write(text)


def run_once(runner: Runner, name: str) -> NoReturn:
    """Become GitHub's runner for one job. The configuration leaves the disk first, and never stands on a command line."""
    find_slot(runner, name)
    folder = runner.folder / name
    path = folder / CONFIG_FILE
    try:
        config = path.read_text(encoding="utf-8")
        path.unlink()
    except OSError as error:
        raise RunnerError(
            f"{path}: cannot be read ({error.strerror}); `perfgate runner prepare` writes it for one run"
        ) from None
    home = folder / RUNNER_DIR
    try:
        os.chdir(home)
        os.execve(home / RUN, [RUN], {**os.environ, VARIABLE: config})  # noqa: S606 - no shell is wanted between
    except OSError as error:
        raise RunnerError(f"{home / RUN}: cannot be run ({error.strerror})") from None
