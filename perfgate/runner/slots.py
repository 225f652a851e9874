"""One measurement a GPU at a time, and a quiet host for those that need it all: locks that die with their holders.

`host.lock` is shared by measurements of single GPUs and held alone by one that wants the host quiet. `gate.lock` is held while
waiting for it, so that a stream of small measurements cannot starve a large one. Locks are flock(2): the kernel releases them
when the last holder is gone, however it went.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perfgate.errors import InputError, RunnerError

POLL_S = 0.2
DEFAULT_FOLDER = Path("/run/perfgate")
VARIABLE = "PERFGATE_LOCKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to lock: `count` of `devices` (UUIDs or indices), or the whole host."""

    devices: tuple[str, ...] = ()
    count: int = 1
    is_exclusive: bool = False
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What was locked. `files` are the descriptors: a child that inherits them keeps the locks when its parent dies."""

    devices: tuple[str, ...]
    files: tuple[int, ...]


def find_lock_folder() -> Path:
    """Return $PERFGATE_LOCKS, else /run/perfgate."""
    return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)


@contextmanager
def hold(wish: Wish, folder: Path) -> Iterator[Held]:
    """Hold the locks of `wish`. Raise RunnerError when they are not free in time, naming who holds them."""
    if wish.count > len(wish.devices) and not wish.is_exclusive and wish.devices:
        raise InputError(f"{wish.count} GPUs wanted where {len(wish.devices)} may be used")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); set {VARIABLE} to a folder of all runners") from None
    deadline = time.monotonic() + wish.timeout_s
    with ExitStack() as stack:
        with _open(folder / "gate.lock") as gate:
            _wait(gate, fcntl.LOCK_EX, deadline, folder)
            host = stack.enter_context(_open(folder / "host.lock"))
            _wait(host, fcntl.LOCK_EX if wish.is_exclusive else fcntl.LOCK_SH, deadline, folder)
        devices = wish.devices if wish.is_exclusive else ()
        files = [host]
        wanted = 0 if wish.is_exclusive or not wish.devices else wish.count
        while wanted:
            taken = _take(wish.devices, wanted, folder, stack)
            if taken:
                devices, files = tuple(name for name, _ in taken), [host, *(file for _, file in taken)]
                break
            _pause(deadline, folder)
        for file in files:
            _sign(file)
        yield Held(devices=devices, files=tuple(file.fileno() for file in files))


def _take(devices: Sequence[str], count: int, folder: Path, stack: ExitStack) -> list[tuple[str, IO[str]]]:
    """Lock `count` free devices or none: whoever waits holds nothing that another waits for."""
    with ExitStack() as attempt:
        taken: list[tuple[str, IO[str]]] = []
        for device in sorted(devices):
            file = attempt.enter_context(_open(folder / f"gpu-{device}.lock"))
            if _try(file, fcntl.LOCK_EX):
                taken.append((device, file))
            if len(taken) == count:
                stack.enter_context(attempt.pop_all())
                return taken
    return []


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)
    except OSError as error:
        raise RunnerError(f"{path}: cannot be opened ({error.strerror}); its folder belongs to the runners' group") from None
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        if os.fstat(descriptor).st_uid == os.geteuid():
            # Whatever this user's mask says, the other slots' users open it too: their group owns the folder.
            os.fchmod(descriptor, 0o660)
        yield file


def _try(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(file: IO[str], kind: int, deadline: float, folder: Path) -> None:
    while not _try(file, kind):
        _pause(deadline, folder)


def _pause(deadline: float, folder: Path) -> None:
    if time.monotonic() >= deadline:
        holders = "; ".join(f"{name}: {holder}" for name, holder in list_holders(folder).items()) or "nobody signed"
        raise RunnerError(f"no free slot in time; held by {holders}")
    time.sleep(POLL_S)


def _sign(file: IO[str]) -> None:
    """Say who holds a lock, for people; the lock itself is the kernel's."""
    file.seek(0)
    file.truncate()
    json.dump({"pid": os.getpid(), "since": round(time.time()), "job": os.environ.get("GITHUB_RUN_ID", "")}, file)
    file.flush()


def list_holders(folder: Path) -> dict[str, str]:
    """Name each lock that is held, and who signed it last."""
    held = {}
    for path in sorted(folder.glob("*.lock")) if folder.is_dir() else ():
        with _open(path) as file:
            if not _try(file, fcntl.LOCK_EX):
                held[path.stem] = _read_signature(file)
    return held


def _read_signature(file: IO[str]) -> str:
    try:
        signed = json.loads(file.read())
        return f"process {int(signed['pid'])}"
    except (ValueError, KeyError, TypeError):
        return "an unsigned process"
