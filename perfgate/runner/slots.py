"""One measurement a GPU at a time, and a quiet host for those that need it all: locks that die with their holders.

The locks are those of `machine/lock.py`, which every session takes; here they are waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perfgate.errors import InputError, RunnerError
from perfgate.machine.lock import describe_holder, list_holders, make_folder, open_lock, try_device, try_lock

POLL_S = 0.2


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


@contextmanager
def hold(wish: Wish, folder: Path) -> Iterator[Held]:
    """Hold the locks of `wish`. Raise RunnerError when they are not free in time, naming who holds them."""
    if wish.count > len(wish.devices) and not wish.is_exclusive and wish.devices:
        raise InputError(f"{wish.count} GPUs wanted where {len(wish.devices)} may be used")
    make_folder(folder)
    deadline = time.monotonic() + wish.timeout_s
    with ExitStack() as stack:
        with open_lock(folder / "gate.lock") as gate:
            _wait(gate, wish, deadline, folder)
            host = stack.enter_context(open_lock(folder / "host.lock"))
            _wait(host, wish, deadline, folder)
        devices = wish.devices if wish.is_exclusive else ()
        files = [host]
        wanted = 0 if wish.is_exclusive or not wish.devices else wish.count
        while wanted:
            taken = _take(wish.devices, wanted, folder, stack)
            if taken:
                devices, files = tuple(name for name, _ in taken), [host, *(file for _, file in taken)]
                break
            _pause(deadline, folder)
        yield Held(devices=devices, files=tuple(file.fileno() for file in files))


def _take(devices: Sequence[str], count: int, folder: Path, stack: ExitStack) -> list[tuple[str, IO[str]]]:
    """Lock `count` free devices or none: a process that waits holds nothing that another one waits for."""
    with ExitStack() as attempt:
        taken: list[tuple[str, IO[str]]] = []
        for device in sorted(devices):
            file = attempt.enter_context(open_lock(folder / f"gpu-{device}.lock"))
            if try_device(file):
                taken.append((device, file))
            if len(taken) == count:
                stack.enter_context(attempt.pop_all())
                return taken
    return []


def _wait(file: IO[str], wish: Wish, deadline: float, folder: Path) -> None:
    while not try_lock(file, is_exclusive=wish.is_exclusive):
        _pause(deadline, folder)


def _pause(deadline: float, folder: Path) -> None:
    if time.monotonic() >= deadline:
        # The gate is held by this process itself, while it waits for the machine.
        held = {name: holder for name, holder in list_holders(folder).items() if holder.process != os.getpid()}
        told = (f"{name}: {describe_holder(holder)}" for name, holder in held.items())
        raise RunnerError(f"no free slot in time; held by {'; '.join(told) or 'nothing that shows here'}")
    time.sleep(POLL_S)
