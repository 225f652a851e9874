"""An environment for a working tree as it stands, made once for the same content: what `--checkout` runs.

Uncommitted changes count: a kernel is measured while it is tuned, before it is committed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfgate.errors import InputError
from perfgate.machine.tools import Tool
from perfgate.serving.engine.environments import build_arm

PACKAGES = ("python", ".")
"""Where below a working tree the package lies that is installed: SGLang's is in python/."""

# Made by running or building the tree, and no part of it.
PASSED_OVER = {"__pycache__", ".git", "build", "dist"}
READY = "ready"
LETTERS = 12
_GIT = Tool(timeout_s=60.0)


def find_package(tree: Path, names: tuple[str, ...] = PACKAGES) -> Path:
    """The first folder among `names` below `tree` that can be installed. Raise InputError when none can."""
    for name in names:
        if any((tree / name / file).is_file() for file in ("pyproject.toml", "setup.py")):
            return tree / name
    raise InputError(
        f"{tree / names[0]}: holds no pyproject.toml; give the folder of a package or of a tree with one in python/"
    )


def ready_python(tree: Path, engine: Path, state: Path) -> Path:
    """The Python that runs the package in `tree` over the environment of `engine`; made below `state` if it is not there.

    Raise InputError for a tree that holds no package, RunnerError with the last line of what failed.
    """
    package = find_package(tree)
    place = state / "arms"
    place.mkdir(parents=True, exist_ok=True)
    target = place / f"{_read_commit(tree)}-{_digest(package, engine)}"
    with _lock(place):
        if not (target / READY).exists():
            # What an attempt left that was cut off.
            shutil.rmtree(target, ignore_errors=True)
            build_arm(package, target, engine)
            (target / READY).touch()
    return target / "bin" / "python"


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """Two gates that want the same tree build it once."""
    with (place / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_commit(tree: Path) -> str:
    """The tree's commit in short, for people who read paths; `tree` where git knows none."""
    done = _GIT.run(["git", "-C", str(tree), "rev-parse", f"--short={LETTERS}", "HEAD"])
    return "tree" if done.code else done.text.strip()


def _digest(package: Path, engine: Path) -> str:
    """A digest of the package's files and of the environment below it."""
    found = hashlib.sha256(str(engine.absolute()).encode())
    for path in _list_files(package):
        found.update(f"{path.relative_to(package)}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:LETTERS]


def _list_files(package: Path) -> list[Path]:
    files = (path for path in package.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in files if not _is_made(path.relative_to(package)))


def _is_made(path: Path) -> bool:
    return any(part in PASSED_OVER or part.endswith(".egg-info") for part in path.parts)
