"""What an arm's compiler chose by timing: the candidate takes over the base's choices for the kernels that both have.

torch.compile times a few settings of each small kernel when it first meets it, and keeps the winner in the arm's cache. Where
two are about as fast, chance decides. Arms with caches of their own would each go on with what they drew, in every block of the
session, and no number of blocks averages that out. A kernel that the base has not got is the candidate's own affair.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.serving.server import Launch

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
PATTERN = "*.best_config"
# How long the winner took is no part of the choice.
TIMES = ("time_taken_ms",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Of `kernels` that the base chose for, `missing` were new to the candidate; for `differing` it had chosen otherwise."""

    kernels: int
    missing: int
    differing: int


def find_folder(launch: Launch) -> Path | None:
    """Where an arm's compiler keeps its choices, as its environment says; None where that says nothing."""
    place = launch.env.get(VARIABLE)
    return None if place is None else Path(place)


def has_to_choose(launch: Launch) -> bool:
    """Whether an arm has a folder for choices, and no compiler has left one there."""
    folder = find_folder(launch)
    return folder is not None and not any(folder.rglob(PATTERN))


def adopt(base: Launch, candidate: Launch) -> Adopted | None:
    """Give the candidate's folder each choice of the base's folder, under the same name; None where they are not two folders.

    Neither arm's server may be compiling. Raise OSError where the candidate's folder cannot be written.
    """
    folders = find_folder(base), find_folder(candidate)
    if folders[0] is None or folders[1] is None or folders[0] == folders[1]:
        return None
    return _copy(folders[0], folders[1])


def _copy(base: Path, candidate: Path) -> Adopted:
    chosen = {path.relative_to(base): path for path in sorted(base.rglob(PATTERN))}
    missing = differing = 0
    for name, path in chosen.items():
        own = candidate / name
        before, after = _read(own), _read(path)
        if before == after or after is None:
            continue
        missing, differing = missing + (before is None), differing + (before is not None)
        _store(own, path.read_bytes())
    return Adopted(kernels=len(chosen), missing=missing, differing=differing)


def _read(path: Path) -> Any:
    """A choice without the times in it; its bytes where it is no table; None where there is none."""
    with suppress(FileNotFoundError):
        content = path.read_bytes()
        with suppress(ValueError):
            found = json.loads(content)
            return {name: value for name, value in found.items() if name not in TIMES} if isinstance(found, dict) else content
        return content
    return None


def _store(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
