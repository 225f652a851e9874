"""Seeds of compile caches. A cached kernel is code, so a job never shares one that another job could write.

A seed is built from the main branch, written once, read-only, with the digest of every file; a job gets a copy of its own,
which is thrown away afterwards. Its name is made of everything that the code depends on (driver, architecture, engine) and,
where it is renewed every night, of the second in which it was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from perfgate.errors import RunnerError
from perfgate.machine.tools import Tool
from perfgate.runner.gpus import read_toolchain
from perfgate.runner.settings import Runner

MANIFEST = "manifest.json"
MAX_FILES = 200_000
MAX_BYTES = 64 * 2**30
MAX_GROUP_BYTES = 2**20
_STAMP = re.compile(r"-\d{14}")


def check_key(key: str) -> str:
    """Return a seed's name that is one. Raise RunnerError for one that could be a path."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?", key) or ".." in key:
        raise RunnerError(f"--key {key[:60]!r}: use letters, digits, dots and hyphens, such as sm90-580.159-a1b2c3")
    return key


def seed(source: Path, cache: Path, key: str) -> Path:
    """Copy `source` into the cache as the seed `key`. Raise RunnerError if there is one, or for a link or device in it."""
    target = cache / check_key(key)
    if target.exists():
        raise RunnerError(f"{target}: is there already; a seed is written once, so choose another key or prune it")
    part = cache / f".{key}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        entries = _copy(source, part / "files")
        content = {"schema": 1, "made": round(time.time()), "files": entries}
        (part / MANIFEST).write_bytes(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))
        for path in [*part.rglob("*"), part]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        part.rename(target)
    except OSError as error:
        raise RunnerError(f"{target}: cannot be written ({error})") from None
    finally:
        _remove(part)
    return target


def _copy(source: Path, target: Path) -> dict[str, str]:
    """Copy regular files and return their digests by relative path."""
    if not source.is_dir():
        raise RunnerError(f"{source}: no such folder")
    target.mkdir(parents=True)
    entries: dict[str, str] = {}
    room = MAX_BYTES
    for path in _list_files(source):
        relative = path.relative_to(source)
        room -= path.stat().st_size
        if room < 0 or len(entries) >= MAX_FILES:
            raise RunnerError(f"{source}: more than {MAX_FILES} files or {MAX_BYTES} bytes is no compile cache")
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative, follow_symlinks=False)
        entries[str(relative)] = _digest(target / relative)
    return entries


def _list_files(folder: Path) -> Iterator[Path]:
    """Every file below a folder; a link or special file could lead out of it."""
    for root, folders, files in os.walk(folder, followlinks=False):
        for name in sorted((*folders, *files)):
            path = Path(root) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise RunnerError(f"{path}: is a link or no regular file; a seed holds files only")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(cache: Path, key: str) -> int:
    """Check every file of a seed against its digest, return their number. Raise RunnerError naming the first that differs."""
    folder = cache / check_key(key)
    try:
        wanted = dict(orjson.loads((folder / MANIFEST).read_bytes())["files"])
    except FileNotFoundError:
        raise RunnerError(f"{folder}: no such seed") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise RunnerError(f"{folder / MANIFEST}: cannot be read; prune this seed and make it anew") from None
    found = {str(path.relative_to(folder / "files")): path for path in _list_files(folder / "files")}
    for name in sorted(wanted.keys() ^ found.keys()):
        raise RunnerError(f"{folder}: {name} {'is missing' if name in wanted else 'was added'}; delete this folder")
    for name, path in sorted(found.items()):
        if _digest(path) != wanted[name]:
            raise RunnerError(f"{folder}: {name} was changed; delete this folder, and find out who could write it")
    return len(found)


def lend(cache: Path, key: str, target: Path) -> int:
    """Give a job its own writable copy of a seed that is whole, and return how many files it has."""
    verify(cache, key)
    if target.exists():
        raise RunnerError(f"{target}: is there already; a job's cache begins new")
    try:
        entries = _copy(cache / key / "files", target)
        for name in entries:
            if Path(name).name.startswith("__grp__"):
                _move_group(target.resolve() / name)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise RunnerError(f"{target}: cannot be written ({error})") from None
    return len(entries)


def make_empty(target: Path) -> None:
    """Begin a job's cache without a seed."""
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise RunnerError(f"{target}: cannot be made ({error.strerror}); a job's cache begins new") from None


def _move_group(path: Path) -> None:
    """Let a group of Triton's point into this copy: it names the files of a kernel by where they were compiled.

    Left as it was, a kernel would be compiled anew although it is there, or read from a place that another job may write.
    """
    if path.stat().st_size > MAX_GROUP_BYTES:
        return
    try:
        group = orjson.loads(path.read_bytes())["child_paths"]
        moved = {str(name): str(path.parent / Path(str(place)).name) for name, place in group.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    path.write_text(json.dumps({"child_paths": moved}), encoding="utf-8")


def renew(source: Path, cache: Path, key: str, now: float) -> Path:
    """Make the newest seed of `key` from `source`, beside the older ones."""
    return seed(source, cache, f"{key}-{time.strftime('%Y%m%d%H%M%S', time.gmtime(now))}")


def find_newest(cache: Path, key: str) -> str | None:
    """The name of the newest seed of `key`; None when there is none."""
    found = [path.parent.name for path in cache.glob(f"{check_key(key)}-*/{MANIFEST}")]
    return max((name for name in found if _STAMP.fullmatch(name.removeprefix(key))), default=None)


def prune(cache: Path, keep: int) -> list[str]:
    """Delete all but the `keep` newest seeds, and what a broken run left; return their names."""
    seeds = [path for path in cache.iterdir() if path.is_dir() and not path.is_symlink()] if cache.is_dir() else []
    ages = {path: _read_age(path) for path in seeds}
    whole = sorted(filter(ages.get, seeds), key=lambda path: (ages[path], path.name))
    gone = [*(path for path in seeds if not ages[path]), *whole[: max(len(whole) - keep, 0)]]
    for path in gone:
        _remove(path)
    return sorted(path.name for path in gone)


def _read_age(folder: Path) -> float:
    """When a seed was made; 0 for one without its manifest, as a full disk or a power cut leaves it."""
    try:
        return float(orjson.loads((folder / MANIFEST).read_bytes())["made"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _remove(folder: Path) -> None:
    """Delete a tree of read-only folders."""
    for root, folders, _ in os.walk(folder):
        for name in folders:
            if not (Path(root) / name).is_symlink():
                (Path(root) / name).chmod(0o755)
    if folder.exists():
        folder.chmod(0o755)
        shutil.rmtree(folder)


_PYTHON = Tool(timeout_s=120.0, failed=RunnerError, hint="set engine in the runner's settings")
_PACKAGES = """
from importlib.metadata import distributions
print(*sorted({f"{one.metadata['Name']}=={one.version}".lower() for one in distributions()}), sep="\\n")
"""


def find_key(runner: Runner) -> str:
    """The key of this machine's seeds, such as sm90-580.95.05-1f0e5c3a9b77. Another driver or engine has another one."""
    driver, architecture = read_toolchain()
    digest = hashlib.sha256(_list_packages(str(runner.engine or sys.executable))).hexdigest()[:12]
    return f"{architecture}-{re.sub(r'[^0-9A-Za-z.]', '-', driver)}-{digest}"


def _list_packages(python: str) -> bytes:
    return _PYTHON.call([python, "-c", _PACKAGES], name=f"{python}, asked for its packages").output
