"""What a server did in a window besides serving: what its compilers left in their caches, and what its log tells of.

The caches are listed before a window and after it, never while it runs. What another process compiles into the same folder at
that time counts too: a machine that compiles is no quiet one.
"""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from perfgate.engines.engine import CacheFolder
from perfgate.results.readings import KERNELS_COMPILED
from perfgate.serving.engine.inheritance import inherit
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.server import Server, read_lines

CachedFiles = frozenset[tuple[str, str, int]]
"""Folder, name and inode of each file: one that is written anew and put in an old one's place has another inode."""

# Triton names a kernel's files after the kernel in this one.
_GROUP = re.compile(r"__grp__(?P<kernel>.+)\.json")
# Locks, unfinished files, and what Python makes of modules that it loads from there.
_PASSING = re.compile(r"lock|locks|.*\.lock|.*\.tmp|tmp\..*|__pycache__")


def list_caches(launch: Launch) -> tuple[Path, ...]:
    """The folders in which the compilers of a server that `launch` starts keep what they compile; they need not exist."""
    env = {**inherit(), **launch.engine.env, **launch.env}
    found = (_find_cache(folder, env) for folder in launch.engine.caches)
    return tuple(dict.fromkeys(path for path in found if path is not None))


def _find_cache(folder: CacheFolder, env: Mapping[str, str]) -> Path | None:
    place = env.get(folder.variable) or folder.default.format(
        tmp=env.get("TMPDIR", tempfile.gettempdir()), user=_name_user(env)
    )
    if not place:
        return None
    home = env.get("HOME") or str(Path.home())
    return Path(re.sub(r"^~(?=/|$)", lambda _: home, place)) / folder.below


def _name_user(env: Mapping[str, str]) -> str:
    """The user as torch names the folder: by the environment, as `getpass` reads it, else by number."""
    names = (env.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    if name := next(filter(None, names), None):
        return re.sub(r'[\\/:*?"<>|]', "_", name)
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid_{os.getuid()}"


def list_cached(folders: Iterable[Path]) -> CachedFiles:
    """List the files below `folders`. What goes away or cannot be read meanwhile is left out."""
    found: set[tuple[str, str, int]] = set()
    left = [str(folder) for folder in folders]
    while left:
        folder = left.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _PASSING.fullmatch(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                else:
                    found.add((folder, entry.name, entry.inode()))
    return frozenset(found)


def name_added(before: CachedFiles, after: CachedFiles) -> tuple[str, ...]:
    """Name each folder that gained a file: by Triton's kernel where it is one's, else by itself and the one above."""
    gained: dict[str, list[str]] = {}
    for folder, file, _ in after - before:
        gained.setdefault(folder, []).append(file)
    return tuple(sorted(_name_entry(folder, files) for folder, files in gained.items()))


def _name_entry(folder: str, files: Iterable[str]) -> str:
    kernels = (match["kernel"] for file in sorted(files) if (match := _GROUP.fullmatch(file)))
    return next(kernels, "/".join(Path(folder).parts[-2:]))


def count_work(server: Server, known: Mapping[Path, int], compiled: tuple[str, ...]) -> dict[str, float]:
    """Readings of a window: lines of each log behind its first bytes, which were `known`, and what was `compiled`."""
    counts: dict[str, float] = {}
    for log, size in known.items():
        for name, count in read_work(log, size, server.launch.engine.work).items():
            counts[name] = counts.get(name, 0.0) + count
    if server.launch.engine.caches:
        counts[KERNELS_COMPILED] = max(counts.get(KERNELS_COMPILED, 0.0), float(len(compiled)))
    return counts


def read_work(log: Path, known: int, patterns: Mapping[str, str]) -> dict[str, float]:
    """Count what a log tells of behind its first `known` bytes: one for each line, or as many as a pattern's group says."""
    counts = dict.fromkeys(patterns, 0.0)
    for line in read_lines(log, known):
        for name, pattern in patterns.items():
            if match := re.search(pattern, line):
                counts[name] += float(match[1]) if match.re.groups else 1.0
    return counts
