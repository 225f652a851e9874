"""What an arm's compiler chose by timing: the candidate starts with the base's choices.

torch.compile times a few settings of each small kernel when it first meets it, and keeps the winner in a file of the arm's
cache, named after the kernel. Where two are about as fast, chance decides. Arms with caches of their own would each go on with
what they drew, in every block of the session, and no number of blocks averages that out. Files of kernels that the candidate
has not got do nothing there; for those that the base has not got it chooses by itself.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.errors import ServerError
from perfgate.serving.engine.launch import Launch
from perfgate.storage.journal import write_atomically

PATTERN = "*.best_config"
# How long the winner took is no part of the choice.
TIMES = ("time_taken_ms",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Of `kernels` that the base chose for, the candidate had no choice for `missing` and another one for `differing`."""

    kernels: int
    missing: int
    differing: int


def find_folder(launch: Launch) -> Path | None:
    """Where an arm's compiler keeps its choices, as the arm's own variables say; None where they say nothing."""
    place = launch.env.get(launch.engine.choices)
    return None if place is None else Path(place).resolve()


def has_to_choose(launch: Launch) -> bool:
    """Whether an arm has a folder for choices, and no compiler has left one there."""
    folder = find_folder(launch)
    return folder is not None and not any(folder.rglob(PATTERN))


def adopt(base: Launch, candidate: Launch) -> Adopted | None:
    """Give the candidate's folder each choice of the base's folder, under the same name; None where they are not two folders.

    The candidate's server must not run. Raise ServerError naming the file that cannot be read or written.
    """
    folders = find_folder(base), find_folder(candidate)
    if folders[0] is None or folders[1] is None or folders[0] == folders[1]:
        return None
    try:
        return _copy(folders[0], folders[1])
    except OSError as error:
        raise ServerError(
            f"{error.filename}: the base's compile choices cannot be copied to the candidate's caches ({error.strerror}); "
            f"check the folder that --caches or {base.engine.choices} names"
        ) from None


def _copy(base: Path, candidate: Path) -> Adopted:
    kernels = missing = differing = 0
    for path in sorted(base.rglob(PATTERN)):
        content, own = _read(path), candidate / path.relative_to(base)
        if content is None:
            continue
        kernels, before = kernels + 1, _read(own)
        if before is not None and _choice(before) == _choice(content):
            continue
        missing, differing = missing + (before is None), differing + (before is not None)
        own.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(own, content)
    return Adopted(kernels=kernels, missing=missing, differing=differing)


def _read(path: Path) -> bytes | None:
    """What a file holds; None where it is not there, or no more."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _choice(content: bytes) -> Any:
    """A choice without the times in it; the bytes themselves where they are no table."""
    with suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict):
            return {name: value for name, value in found.items() if name not in TIMES}
    return content
