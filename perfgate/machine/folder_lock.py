"""A result folder is written by one process at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfgate.errors import EvidenceError
from perfgate.machine.processes import is_alive

LOCK_FILE = ".lock"
POLL_S = 0.1


@contextmanager
def lock_folder(folder: Path, wait_s: float = 30.0) -> Iterator[int]:
    """Hold `folder` as its only writer, and yield the descriptor that holds it.

    A process that inherits the descriptor holds the folder too: the reaper does, until it has ended what a killed gate left,
    and that is waited for. Raise EvidenceError naming the process when another one is alive and writing, or when the folder
    cannot be written. A folder that is made here and stays empty is taken away again: what was refused leaves nothing.
    """
    path, is_new = folder / LOCK_FILE, not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, time.monotonic() + wait_s)
    except OSError as error:
        raise EvidenceError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error
    try:
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _acquire(path: Path, deadline: float) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            os.close(descriptor)
            if time.monotonic() > deadline or is_alive(holder):
                raise EvidenceError(
                    f"{path.parent}: process {holder or 'unknown'} writes there; wait for its end, or give another folder"
                ) from None
            time.sleep(POLL_S)
            continue
        # The last holder removes the file when it ends: a lock on a file without a name would not keep another process out.
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            os.truncate(descriptor, 0)
            # The lock holds without its number, and what a full disk does not take is told by the work that fails there.
            with suppress(OSError):
                os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)
