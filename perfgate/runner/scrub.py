"""Leave nothing of a job behind: no process, no file, no memory on a GPU. Run by root between jobs.

What belongs to a job is told by its user, which one slot alone has: names and environment are a job's own to choose, its user
is not.
"""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
from pydantic import ValidationError

from perfgate.errors import RunnerError
from perfgate.machine.tools import Tool
from perfgate.storage.schema import adapt

T = TypeVar("T")

GRACE_S = 10.0
POLL_S = 0.1
SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/run/lock"), Path("/dev/mqueue"))  # noqa: S108 - the places that are cleaned, not used
LINGER = Path("/var/lib/systemd/linger")
"""Users whose manager systemd keeps, and starts at boot, whether or not they are logged in."""

BOOTED = Path("/run/systemd/system")
_TOOL = Tool(timeout_s=60.0, missing=RunnerError, failed=RunnerError, hint="a slot is cleaned with the system's own tools")
MIN_UID = 1


def end_processes(uid: int) -> list[int]:
    """Kill every process of a slot's user until none is left, and return whom it took. Raise RunnerError if one survives.

    Again and again, for a process that forks while it is looked for is not seen the first time.
    """
    if uid < MIN_UID:
        raise RunnerError("processes of root are never ended; give the slot's own user")
    ended: set[int] = set()
    deadline = time.monotonic() + GRACE_S
    while left := _list_processes(uid):
        for process in left:
            ended.add(process.pid)
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if time.monotonic() > deadline:
            raise RunnerError(f"processes {', '.join(str(one.pid) for one in left)} survive being killed; reboot this machine")
        time.sleep(POLL_S)
    return sorted(ended)


def end_sessions(user: str, uid: int) -> None:
    """End what systemd keeps for a slot's user outside of the slot's unit: its manager, its sessions, its wish for both.

    A slot's user has none of these; one that is there is what a job made.
    """
    (LINGER / user).unlink(missing_ok=True)
    if BOOTED.is_dir():
        for command in (["loginctl", "terminate-user", user], ["systemctl", "stop", f"user@{uid}.service"]):
            # Both say that there is nothing to end; whether something is left, the second look says.
            _TOOL.run(command)


def _list_processes(uid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if uid in process.uids() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def delete_files(uid: int, own: Iterable[Path], shared: Iterable[Path] = SHARED) -> int:
    """Empty the slot's own folders, and delete what its user owns in shared ones; return how many entries went.

    Links are deleted, never followed: a job may have made one to anywhere.
    """
    entries = [entry for folder in own if folder.is_dir() and not folder.is_symlink() for entry in folder.iterdir()]
    for folder in shared:
        entries += _list_owned(folder, uid)
    for entry in entries:
        _delete(entry)
    return len(entries)


def _list_owned(folder: Path, uid: int) -> list[Path]:
    """What a user owns in a shared folder. What others delete there while it is read is gone, whoever owned it."""
    found = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            if entry.lstat().st_uid == uid:
                found.append(entry)
    return found


def _delete(entry: Path) -> None:
    try:
        if stat.S_ISDIR(entry.lstat().st_mode):
            delete_tree(entry)
        else:
            entry.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunnerError(f"{entry}: cannot be deleted ({error.strerror}); the next job would find it") from None


def delete_tree(folder: Path) -> None:
    """By `rm`, which no depth of folders brings to its limit; Python's own walk recurses, and a job may nest as it likes."""
    _TOOL.call(["rm", "-rf", "--", str(folder)], name=f"deleting {folder}")


def read_left(path: Path, limit: int) -> bytes | None:
    """Read the first bytes of a file that a job left for root; None where there is none.

    No link is followed and no pipe waited for. Raise RunnerError for what is no file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunnerError(f"{path}: is no file ({error.strerror})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RunnerError(f"{path}: is no file")
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def read_left_value(path: Path, limit: int, kind: type[T], what: str) -> T | None:
    """Read a value that a job left for root; None where there is none. Raise RunnerError for what is no `what`."""
    raw = read_left(path, limit)
    if raw is None:
        return None
    try:
        return adapt(kind).validate_json(raw)
    except ValidationError:
        raise RunnerError(f"{path}: is no {what}") from None


def find_leftovers(uid: int, shared: Iterable[Path] = SHARED) -> list[str]:
    """Name what of a user is still there after all, for a machine is clean only if a second look says so."""
    left = find_processes(uid)
    for folder in shared:
        left += map(str, _list_owned(folder, uid))
    return left


def find_processes(uid: int) -> list[str]:
    """Name the processes of a user that live."""
    return [f"process {process.pid}" for process in _list_processes(uid)]


def find_user(name: str) -> int:
    """The number of a user. Raise RunnerError when there is none."""
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise RunnerError(f"--user {name[:40]}: no such user on this machine") from None
    if uid < MIN_UID or uid == os.getuid():
        raise RunnerError(f"--user {name[:40]}: is root, or the user who runs this; give the slot's own user")
    return uid
