"""One measurement for a set of GPUs and their cores, or for the whole machine: locks that die with their holders.

`host.lock` is shared by measurements of single GPUs and held alone by one that wants the machine for itself, as every session
on a CPU engine does. `gpu-UUID.lock` is held alone. `gate.lock` is held while a lock is taken, alone by one that wants the
machine alone, so that a stream of small measurements cannot starve it. Their files stay: a lock on a file without a name would
keep no other process out.

The kernel releases a lock when the last holder is gone, however it went. `host.lock` and `gate.lock` are locked by
F_OFD_SETLK (fcntl(2)), which lets only those lock alone who may write the file; a GPU's by flock(2), for which reading is
enough. On a prepared machine the files are root's: a slot's user may read the first two and its own GPU's, and neither write,
make, replace nor delete one. Who holds a lock is asked of the kernel; nothing is written into the files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
    """Open a lock's file, made where there is none; for reading alone where this user may not write it.

    Raise RunnerError where it may do neither, and for what is no file.
    """
    try:
        descriptor = _open(path)
    except OSError as error:
        raise RunnerError(
            f"{path}: cannot be opened ({error.strerror}); join the group that owns it, or set {VARIABLE}"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunnerError(f"{path}: is no file, so nothing can be locked with it; look who made it, then delete it")
    is_writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    with os.fdopen(descriptor, "r+" if is_writable else "r", encoding="utf-8") as file:
        yield file


def _open(path: Path) -> int:
    # O_NONBLOCK: a pipe that lies there is not waited for.
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        # In a shared folder the kernel refuses O_CREAT on a file of another user, not its opening (fs.protected_regular).
        return os.open(path, os.O_RDWR | flags)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR}:
            raise
        return os.open(path, os.O_RDONLY | flags)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o660)
    except FileExistsError:
        return os.open(path, os.O_RDWR | flags)
    # Whatever this user's mask says, the other users open it too; a folder that is not for all lets its group in alone.
    os.fchmod(descriptor, 0o666 if is_shared(path.parent) else 0o660)
    return descriptor


def try_lock(file: IO[str], *, is_exclusive: bool) -> bool:
    """Take `host.lock` or `gate.lock` if it is free. Raise RunnerError where this user may share it and not have it alone."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _pack(is_exclusive=is_exclusive))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        if error.errno == errno.EBADF:
            raise RunnerError(f"{file.name}: a slot's user may share this machine; root alone has it for itself") from None
        raise RunnerError(f"{file.name}: cannot be locked ({error.strerror}); set {VARIABLE} to a local folder") from None
    # /proc/locks names no process for such a lock, except this process, whose own lock does not keep it out.
    try_flock(file, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
    return True


def try_device(file: IO[str]) -> bool:
    """Take a GPU's lock if it is free."""
    return try_flock(file, fcntl.LOCK_EX)


def try_flock(file: IO[str], kind: int) -> bool:
    """Take a lock of flock(2) if it is free."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(file: IO[str]) -> bool:
    """Whether a lock is held through any other opening of its file."""
    told = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _pack(is_exclusive=True))
    if struct.unpack_from("h", told)[0] != fcntl.F_UNLCK or not try_flock(file, fcntl.LOCK_EX):
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _pack(*, is_exclusive: bool) -> bytes:
    """`struct flock` of fcntl(2) for the whole file: type, whence, start, length, process; padded to its size."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK if is_exclusive else fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)


def find_holder(file: IO[str]) -> int:
    """The process that took a lock, as the kernel says; 0 where it does not, as of a process in another container."""
    inode = os.fstat(file.fileno()).st_ino
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if "->" not in line)
    return next((int(words[4]) for words in found if words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who took a lock: a process, 0 for one that does not show here. `problem` says why the lock cannot be read."""

    process: int = 0
    problem: str = ""


def describe_holder(holder: LockHolder) -> str:
    """Who took a lock, in words."""
    return holder.problem or (f"process {holder.process}" if holder.process else "a process that does not show here")


def list_holders(folder: Path) -> dict[str, LockHolder]:
    """Name each lock that is held, and who took it. What this user may not read is left out."""
    held = {}
    for path in sorted(folder.glob("*.lock")) if folder.is_dir() else ():
        if not path.is_symlink() and not os.access(path, os.R_OK):
            continue
        try:
            with open_lock(path) as file:
                if is_locked(file):
                    held[path.stem] = LockHolder(process=find_holder(file))
        except RunnerError as error:
            held[path.stem] = LockHolder(problem=str(error))
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
        while not try_lock(gate, is_exclusive=devices is None):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S / 10)
        with ExitStack() as attempt:
            host = attempt.enter_context(open_lock(folder / "host.lock"))
            if not try_lock(host, is_exclusive=devices is None):
                return None
            files = [host]
            for device in sorted(set(devices or ())):
                files.append(attempt.enter_context(open_lock(folder / f"gpu-{device}.lock")))
                if not try_device(files[-1]):
                    return None
            stack.enter_context(attempt.pop_all())
            return tuple(file.fileno() for file in files)


def _is_held_for_us(devices: Sequence[str] | None, folder: Path) -> bool:
    """Whether processes that this one descends from hold what the session needs."""
    ancestors = list(list_ancestors(os.getpid()))

    def holds(name: str, kind: str) -> bool:
        return any(_holds(pid, folder / f"{name}.lock", kind) for pid in ancestors)

    if holds("host", "OFDLCK ADVISORY WRITE"):
        return True
    return devices is not None and all(holds(f"gpu-{device}", "FLOCK ADVISORY WRITE") for device in devices)


def _holds(pid: int, path: Path, kind: str) -> bool:
    """Whether a process holds a lock through a file that it has open, as its /proc/PID/fdinfo says."""
    process = Path("/proc", str(pid))
    try:
        wanted = path.stat()
        opened = [entry for entry in (process / "fd").iterdir() if entry.exists() and os.path.samestat(wanted, entry.stat())]
        told = [(process / "fdinfo" / entry.name).read_text(encoding="utf-8") for entry in opened]
    except OSError:
        return False
    return any(kind in " ".join(line.split()) for text in told for line in text.splitlines() if line.startswith("lock:"))


def _find_living(devices: Sequence[str] | None, folder: Path) -> LockHolder | None:
    """A process that holds what is wanted and lives: a GPU's lock before the machine's, which others share."""
    holders = list_holders(folder)
    taken = [holder for name, holder in holders.items() if devices is None or name in {f"gpu-{device}" for device in devices}]
    for holder in taken or [holders.get("host", LockHolder())]:
        if is_alive(str(holder.process)):
            return holder
    return None


def _refuse(devices: Sequence[str] | None, folder: Path, holder: LockHolder | None) -> str:
    what = "this machine" if devices is None else f"GPU {', '.join(sorted(set(devices)))}, or on the machine as a whole"
    wait = "perfgate runner lock --exclusive" if devices is None else "perfgate runner lock"
    return (
        f"{describe_holder(holder or LockHolder())} measures on {what} ({folder}): two at once would disturb each other; "
        f"wait for its end, or let `{wait} -- COMMAND` wait for it"
    )
