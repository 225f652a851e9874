"""Which packages a lock file pins, and by which of them two working trees differ."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import InputError
from perfgate.storage.stream import read_text

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*==\s*(?P<version>[\w.+!-]+)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package of a lock file; `line` is what installs it, with its hashes."""

    name: str
    version: str
    line: str

    @property
    def is_conditional(self) -> bool:
        """Whether a marker says on which machines it is installed at all."""
        return ";" in self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What a file pins, by normalised name, and the requirements of a project that pin no one version, as they stand there."""

    pins: Mapping[str, Pin]
    loose: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bump:
    """A package that a candidate's lock file has in another version; `before` is empty for one that the base has not."""

    before: str
    pin: Pin

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.pin.name} {self.before or 'absent'} -> {self.pin.version}"


def _find_first(tree: Path, names: Sequence[str]) -> Path | None:
    """The first of `names` that a working tree has."""
    return next((tree / name for name in names if (tree / name).is_file()), None)


def find_lock(place: Path, names: Sequence[str]) -> Path:
    """The lock file itself, or the first of `names` that a working tree has. Raise InputError for a tree with none."""
    if not place.is_dir():
        return place
    found = _find_first(place, names)
    if found is None:
        raise InputError(f"{place}: has none of {', '.join(names)}; give a lock file, or a tree with one of these")
    return found


def read_lock(file: Path) -> Lock:
    """Read what a file pins. Raise InputError naming file and line for what pins no one version.

    A lock file is in the format of requirements, as `pip freeze`, `pip-compile` and `uv export` write it. Of a project
    (`pyproject.toml`) its dependencies count; those that pin no one version are `loose`.
    """
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); give a lock file in the format of requirements") from None
    lock = _read_project(text, file) if file.suffix == ".toml" else _read_requirements(text, file)
    if not lock.pins:
        raise InputError(f"{file}: pins no package; give a lock file in the format of requirements")
    return lock


def _read_requirements(text: str, file: Path) -> Lock:
    pins: dict[str, Pin] = {}
    for number, line in _list_lines(text):
        pin = _parse(line)
        if pin is None:
            raise InputError(f"{file}:{number}: {line[:60]!r} pins no version; write NAME==VERSION, as pip-compile does")
        _add(pins, pin, f"{file}:{number}")
    return Lock(pins=pins)


def _list_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each requirement as one line, with the number of its first."""
    number = 1
    for row in re.split(r"(?<!\\)\n", text):
        line = re.sub(r"\s+#.*$|^#.*$", "", row.replace("\\\n", " ")).strip()
        if line and not line.startswith("--"):
            yield number, line
        number += row.count("\n") + 1


def _read_project(text: str, file: Path) -> Lock:
    try:
        project = tomllib.loads(text).get("project")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not readable TOML ({error})") from None
    listed = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(listed, list) or not all(isinstance(line, str) and _NAME.match(line) for line in listed):
        raise InputError(f"{file}: project.dependencies is no list of requirements; list them, one a string")
    pins: dict[str, Pin] = {}
    for pin in filter(None, map(_parse, listed)):
        _add(pins, pin, f"{file}: project.dependencies")
    return Lock(pins=pins, loose=frozenset(" ".join(line.split()) for line in listed if _parse(line) is None))


def _parse(line: str) -> Pin | None:
    found = _PIN.match(line)
    return Pin(name=normalise(found["name"]), version=found["version"], line=line) if found else None


def _add(pins: dict[str, Pin], pin: Pin, where: str) -> None:
    if pin.name in pins:
        raise InputError(f"{where}: {pin.name} stands in it twice; keep the line that holds on this machine")
    pins[pin.name] = pin


def normalise(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def list_pins(own: Lock, other: Lock) -> tuple[Pin, ...]:
    """What `own` pins in another version than `other`, or pins alone, by name."""
    return tuple(
        pin for name, pin in sorted(own.pins.items()) if name not in other.pins or other.pins[name].version != pin.version
    )


def list_bumps(base: Lock, candidate: Lock) -> tuple[Bump, ...]:
    """The packages that a candidate has in another version, or has alone, by name."""
    return tuple(
        Bump(before=base.pins[pin.name].version if pin.name in base.pins else "", pin=pin) for pin in list_pins(candidate, base)
    )


def read_pair(base: Path, candidate: Path, names: Sequence[str]) -> tuple[Lock, Lock] | None:
    """The locks of two trees by the first of `names` that each has; None where they pin nothing, or say the same.

    Files that are equal are not read, so that a tree whose file pins no version is no worse for it until it changes.
    """
    found, other = _find_first(base, names), _find_first(candidate, names)
    if found is None or other is None:
        return None
    if found.read_bytes() == other.read_bytes():
        return None
    return read_lock(found), read_lock(other)
