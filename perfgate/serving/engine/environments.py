"""Build one arm: an environment that runs a checkout's code, or other versions of packages, over the machine's engine.

Dependencies come from the engine's environment, so that both arms share every wheel and neither downloads one. Building runs
the checkout's code: it happens as the job's user, and both arms are built the same way.

One of a working tree as it stands, which `--checkout` runs, is made once for the same content. Uncommitted changes count: a
kernel is measured while it is tuned, before it is committed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from perfgate.errors import InputError, RunnerError
from perfgate.machine.tools import Tool
from perfgate.storage.places import open_folder
from perfgate.storage.state import VARIABLE

_PYTHON = Tool(timeout_s=1800.0, failed=RunnerError, hint="set engine in the runner's settings")
_LAID = "engine.pth"
_PATHS = f"""
import json, sysconfig
from pathlib import Path
own = sorted({{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}})
below = [line for path in own for file in Path(path).glob({_LAID!r}) for line in file.read_text().split("\\n") if line]
print(json.dumps(own + below))
"""
PACKAGES = ("python", ".")
"""Where below a working tree the package lies that is installed: SGLang's is in python/."""

# Made by running or building the tree, and no part of it.
PASSED_OVER = {"__pycache__", ".git", "build", "dist"}
READY = "ready"
LETTERS = 12
_GIT = Tool(timeout_s=60.0)


def build_arm(source: Path, target: Path, engine: Path) -> Path:
    """Make an environment at `target` over that of `engine`, install the project in `source` into it, return its Python.

    Raise InputError for a source that is no project, RunnerError with the last line of what failed.
    """
    if not (source / "pyproject.toml").is_file() and not (source / "setup.py").is_file():
        raise InputError(f"{source}: holds no pyproject.toml; give the folder of the package, for SGLang its python/")
    if target.exists():
        raise InputError(f"{target}: is there already; an arm is built new")
    python = lay_over(target, engine)
    install_over(python, ["--no-index", "--no-build-isolation", str(source)])
    return python


def lay_over(target: Path, engine: Path) -> Path:
    """Make an empty environment at `target` that finds all that `engine`, a Python, finds; return its Python.

    `engine` may be that of an environment that was laid over another one.
    Raise RunnerError with the last line of what failed.
    """
    _PYTHON.call([str(engine), "-m", "venv", "--without-pip", str(target)], name="venv")
    python = target / "bin" / "python"
    paths = json.loads(_PYTHON.call([str(engine), "-c", _PATHS], name="engine").text)
    (own,) = json.loads(_PYTHON.call([str(python), "-c", _PATHS], name="arm").text)[:1]
    # Of two packages of one name the arm's own folder wins, as it comes first on the path.
    (Path(own) / _LAID).write_text("\n".join(paths) + "\n", encoding="utf-8")
    return python


def install_over(python: Path, wanted: Sequence[str]) -> None:
    """Install what is `wanted`, words of pip's, and nothing that it requires. Raise RunnerError with pip's last line."""
    options = ["--no-deps", "--ignore-installed", "--disable-pip-version-check"]
    _PYTHON.call([str(python), "-m", "pip", "install", "--quiet", *options, *wanted], name="pip")


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
    place = open_folder(state / "arms", VARIABLE)
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
