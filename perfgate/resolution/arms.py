"""An arm as it is given on the command line: a release, a working tree or a Python, made ready to be asked."""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import EngineError, InputError
from perfgate.machine.tools import Tool
from perfgate.storage.places import open_folder
from perfgate.storage.state import VARIABLE, find_state_dir
from perfgate.storage.stream import read_text

_RELEASE = re.compile(r"\d+(\.\d+)+((rc|a|b|\.post|\.dev)\d+)?")
_PIP = Tool(timeout_s=600.0, missing=EngineError, failed=EngineError, hint="give a Python with pip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an arm's SGLang comes from.

    `python` is the environment that brings torch and transformers. `folder`, where not None, holds a `sglang` package that goes
    before that environment's own. `requires` are the lines of a working tree's requirements, empty where installed metadata say
    them. `triton` is the version to look tables up for in place of the one that the release's torch brings; empty for that one.
    """

    name: str
    python: str
    folder: Path | None = None
    requires: tuple[str, ...] = ()
    triton: str = ""
    is_tree: bool = False


def find_source(given: str, python: str, *, option: str, triton: str = "") -> Source:
    """What `given` names: a release (`0.5.23`), the folder of a working tree or of an installation, or a Python.

    Raise InputError, which names the `option`, where it is none of these; EngineError where a release cannot be installed.
    """
    if triton and not re.fullmatch(r"\d+\.\d+\.\d+", triton):
        raise InputError(f"{option}-triton {triton}: is no version such as 3.8.0")
    python = _locate(python)
    if _RELEASE.fullmatch(given):
        return Source(name=f"sglang {given}", python=python, folder=fetch_release(given, python), triton=triton)
    path = Path(given)
    if path.is_dir():
        return _find_tree(path.resolve(), python, option, triton)
    if path.is_file() or shutil.which(given):
        return Source(name=given, python=_locate(given), triton=triton)
    raise InputError(f"{option} {given}: is no release of SGLang, no folder with one and no Python; give one of these")


def _locate(python: str) -> str:
    """The same file from any folder, since an arm may run in one of its own; a link stays one, for it is its environment's."""
    return str(Path(python).absolute()) if Path(python).is_file() else python


def _find_tree(folder: Path, python: str, option: str, triton: str) -> Source:
    for place in (folder / "python", folder):
        if (place / "sglang" / "srt").is_dir():
            requires = _read_requires(place / "pyproject.toml", option)
            return Source(name=folder.name, python=python, folder=place, requires=requires, triton=triton, is_tree=True)
    raise InputError(f"{option} {folder}: holds neither sglang/srt nor python/sglang/srt; give a working tree of SGLang")


def _read_requires(file: Path, option: str) -> tuple[str, ...]:
    """The dependencies of a working tree; empty where its folder is an installation and has none of its own."""
    if not file.is_file():
        return ()
    try:
        return tuple(map(str, tomllib.loads(read_text(file))["project"]["dependencies"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{option} {file}: project.dependencies cannot be read ({error!r}); correct the file") from None


def fetch_release(version: str, python: str) -> Path:
    """The folder of a release in this machine's store; it is fetched from the package index, without what it requires, once."""
    store = find_state_dir() / "resolve"
    folder = store / f"sglang-{version}"
    if folder.is_dir():
        return folder
    open_folder(store, VARIABLE)
    with tempfile.TemporaryDirectory(dir=store) as made:
        argv = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
        argv += ["--only-binary", ":all:", "--target", f"{made}/sglang", f"sglang=={version}"]
        _PIP.call(argv, name=f"pip install sglang=={version}")
        try:
            Path(made, "sglang").rename(folder)
        except OSError:  # another command made it meanwhile
            if not folder.is_dir():
                raise
    return folder
