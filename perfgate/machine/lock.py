"""One measurement for a set of GPUs and their cores, or for the whole machine: locks that die with their holders.

`host.lock` is shared by measurements of single GPUs and held alone by one that wants the machine for itself, as every session
on a CPU engine does. `gpu-UUID.lock` is held alone. `gate.lock` is held while a lock is taken, so that a stream of small
measurements cannot starve a large one. Locks are flock(2): the kernel releases them when the last holder is gone, however it
went. Their files stay: a lock on a file without a name would keep no other process out.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from perfgate.errors import InputError, RunnerError
from perfgate.machine.processes import is_alive, list_ancestors

VARIABLE = "PERFGATE_LOCKS"
PREPARED = Path("/run/perfgate")
"""The folder that `perfgate runner init-host` makes for the users of all slots."""

SHARED = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - nothing secret; a foreign user's link there is not followed
"""Where every user of a machine that was not prepared may make files; the first that is there counts for all."""

POLL_S = 0.2
PATIENCE_S = 2.0
"""A start holds the gate for milliseconds: this long it is waited for."""

GONE_S = 30.0
"""A gate that was killed leaves its lock to the process that ends its servers, for so long at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Who holds a lock, as the file says: the process, 0 where none signed, and whether it wanted to be alone."""

    pid: int
    is_exclusive: bool


def find_lock_folder() -> Path:
    """Return $PERFGATE_LOCKS, else /run/perfgate where it was prepared, else a folder that all users share."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if PREPARED.is_dir():
        return PREPARED
    return next((place for place in SHARED if is_shared(place)), SHARED[-1]) / "perfgate"


def is_shared(place: Path) -> bool:
    """Whether every user may make files there and none may remove another's."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def make_folder(folder: Path) -> None:
    """Make the folder of the locks, for all users where its parent is for all. Raise InputError where that cannot be."""
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            if is_shared(folder.parent):
                folder.chmod(0o1777)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); set {VARIABLE} to a folder of all users") from None


@contextmanager
def open_lock(path: Path) -> Iterator[IO[str]]:
    """Open a lock's file, made where there is none. Raise RunnerError where this user may not."""
    try:
        descriptor = _open(path)
    except OSError as error:
        raise RunnerError(
            f"{path}: cannot be opened ({error.strerror}); join the group that owns its folder, or set {VARIABLE}"
        ) from None
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        if os.fstat(descriptor).st_uid == os.geteuid():
            # Whatever this user's mask says, the other users open it too; a prepared folder lets its group in alone.
            os.fchmod(descriptor, 0o666 if is_shared(path.parent) else 0o660)
        yield file


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # In a shared folder the kernel refuses O_CREAT on a file of another user, not its opening (fs.protected_regular).
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o660)
    except FileExistsError:
        return os.open(path, flags)


def try_lock(file: IO[str], kind: int) -> bool:
    """Take a lock if it is free."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sign(file: IO[str], *, is_exclusive: bool = False) -> None:
    """Say who holds a lock; the lock itself is the kernel's."""
    file.seek(0)
    file.truncate()
    content: dict[str, Any] = {"pid": os.getpid(), "since": round(time.time()), "job": os.environ.get("GITHUB_RUN_ID", "")}
    json.dump({**content, "exclusive": is_exclusive}, file)
    file.flush()


def read_signature(file: IO[str]) -> Signature:
    """Who signed a lock last."""
    file.seek(0)
    try:
        signed = json.loads(file.read())
        return Signature(pid=int(signed["pid"]), is_exclusive=signed.get("exclusive") is True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Signature(pid=0, is_exclusive=False)


def list_holders(folder: Path) -> dict[str, str]:
    """Name each lock that is held, and who signed it last."""
    held = {}
    for path in sorted(folder.glob("*.lock")) if folder.is_dir() else ():
        with open_lock(path) as file:
            if not try_lock(file, fcntl.LOCK_EX):
                pid = read_signature(file).pid
                held[path.stem] = f"process {pid}" if pid else "an unsigned process"
    return held


@contextmanager
def hold_machine(devices: Sequence[str] | None, folder: Path) -> Iterator[tuple[int, ...]]:
    """Hold what one session measures on and yield the descriptors: `devices` by UUID, the whole machine where they are None.

    A child that inherits a descriptor holds its lock. What `perfgate runner lock` holds for this process is not taken again.
    Raise RunnerError at once, naming the process, where another measurement runs there; a lock that a killed one left is waited
    for.
    """
    make_folder(folder)
    if _is_held_for_us(devices, folder):
        yield ()
        return
    begun = time.monotonic()
    while True:
        with ExitStack() as stack:
            files = _take(devices, folder, stack, begun + PATIENCE_S)
            if files is not None:
                yield files
                return
        if time.monotonic() - begun > GONE_S or (holder := _find_living(devices, folder)):
            raise RunnerError(_refuse(devices, folder, holder))
        time.sleep(POLL_S)


def _take(devices: Sequence[str] | None, folder: Path, stack: ExitStack, deadline: float) -> tuple[int, ...] | None:
    """Take every lock or none; None where one is not free."""
    with open_lock(folder / "gate.lock") as gate:
        while not try_lock(gate, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S / 10)
        with ExitStack() as attempt:
            host = attempt.enter_context(open_lock(folder / "host.lock"))
            if not try_lock(host, fcntl.LOCK_EX if devices is None else fcntl.LOCK_SH):
                return None
            files = [host]
            for device in sorted(set(devices or ())):
                files.append(attempt.enter_context(open_lock(folder / f"gpu-{device}.lock")))
                if not try_lock(files[-1], fcntl.LOCK_EX):
                    return None
            for file in files:
                sign(file, is_exclusive=devices is None)
            stack.enter_context(attempt.pop_all())
            return tuple(file.fileno() for file in files)


def _is_held_for_us(devices: Sequence[str] | None, folder: Path) -> bool:
    """Whether a process that this one descends from holds what the session needs."""
    ancestors = set(list_ancestors(os.getpid()))
    wanted = ["host"] if devices is None else [f"gpu-{device}" for device in devices]
    for name in ("host", *wanted):
        path = folder / f"{name}.lock"
        if not path.exists():
            return False
        with open_lock(path) as file:
            found = None if try_lock(file, fcntl.LOCK_EX) else read_signature(file)
        if found is None:
            return False
        if name == "host" and found.pid in ancestors and found.is_exclusive:
            return True
        if name in wanted and (found.pid not in ancestors or devices is None):
            return False
    return True


def _find_living(devices: Sequence[str] | None, folder: Path) -> str | None:
    """A process that holds what is wanted and lives: a GPU's lock before the machine's, which others share."""
    holders = list_holders(folder)
    taken = [holder for name, holder in holders.items() if devices is None or name in {f"gpu-{device}" for device in devices}]
    for holder in taken or [holders.get("host", "")]:
        if is_alive(holder.removeprefix("process ")):
            return holder
    return None


def _refuse(devices: Sequence[str] | None, folder: Path, holder: str | None) -> str:
    what = "this machine" if devices is None else f"GPU {', '.join(sorted(set(devices)))}, or on the machine as a whole"
    wait = "perfgate runner lock --exclusive" if devices is None else "perfgate runner lock"
    return (
        f"{holder or 'a process that did not sign'} measures on {what} ({folder}): two at once would disturb each other; "
        f"wait for its end, or let `{wait} -- COMMAND` wait for it"
    )
