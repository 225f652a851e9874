"""Empty the GPUs of one job without root: end what its own user left there, and wait until the memory is free.

On a shared host no process is ended by name, and none of another user is ended at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

from perfgate.runner.health import MAX_IDLE_MEMORY_SHARE, Reading

POLL_S = 0.5


def clean_gpus(read: Callable[[], Sequence[Reading]], timeout_s: float) -> tuple[frozenset[int], tuple[str, ...]]:
    """Clean the GPUs that `read` tells of; return whom it ended and, where they are not empty in time, what is left."""
    deadline = time.monotonic() + timeout_s
    ended: set[int] = set()
    while True:
        readings = read()
        ended |= {pid for pid in _list_own(readings) if _end(pid)}
        left = tuple(_describe(readings))
        if not left or time.monotonic() >= deadline:
            return frozenset(ended), left
        time.sleep(POLL_S)


def _list_own(readings: Iterable[Reading]) -> set[int]:
    """Processes of this user on the GPUs, but not this one and those that it runs in."""
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = {pid for reading in readings for pid in reading.pids or ()} - spared
    return {pid for pid in found if _find_owner(pid) == os.getuid()}


def _find_owner(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.Error:
        return None


def _end(pid: int) -> bool:
    try:
        psutil.Process(pid).kill()
    except psutil.Error:
        return False
    return True


def _describe(readings: Iterable[Reading]) -> Iterable[str]:
    for reading in readings:
        if reading.pids:
            yield f"GPU {reading.index}: processes {', '.join(map(str, reading.pids))} still compute on it"
        elif reading.memory_used_share > MAX_IDLE_MEMORY_SHARE:
            yield f"GPU {reading.index}: memory is in use though no process shows"
