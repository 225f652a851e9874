"""The packages by which two lock files differ, as places of a search, and environments in which some of them are put back."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from perfgate.bisection.guard import Guard
from perfgate.bisection.repository import SHORT, Commit, Line
from perfgate.bisection.trial import CommitError
from perfgate.errors import EngineError, InputError, RunnerError
from perfgate.machine.tools import Tool
from perfgate.serving.engine.environments import install_over, lay_over

_PYTHON = Tool(timeout_s=120.0, missing=EngineError, failed=EngineError, hint="give the Python that BASE was installed into")
_ASK = """
import importlib.metadata, json, re
found = {re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower(): one.version for one in importlib.metadata.distributions()}
print(json.dumps(found))
"""
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*==\s*(?P<version>[\w.+!-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package of a lock file; `line` is what installs it, with its hashes."""

    name: str
    version: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bump:
    """A package that a candidate's lock file has in another version; `before` is empty for one that the base has not."""

    before: str
    pin: Pin

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.pin.name} {self.before or 'absent'} -> {self.pin.version}"


def read_lock(file: Path) -> dict[str, Pin]:
    """The pins of a lock file by normalised name. Raise InputError naming file and line for what pins no one version.

    It is in the format of requirements, as `pip freeze`, `pip-compile` and `uv export` write it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); give a lock file in the format of requirements") from None
    pins: dict[str, Pin] = {}
    number = 1
    for row in re.split(r"(?<!\\)\n", text):
        line = re.sub(r"\s+#.*$|^#.*$", "", row.replace("\\\n", " ")).strip()
        first, number = number, number + row.count("\n") + 1
        if not line or line.startswith("--"):
            continue
        found = _PIN.match(line)
        if found is None:
            raise InputError(f"{file}:{first}: {line[:60]!r} pins no version; write NAME==VERSION, as pip-compile does")
        name = normalise(found["name"])
        if name in pins:
            raise InputError(f"{file}:{first}: {name} stands in it twice; keep the line that holds on this machine")
        pins[name] = Pin(name=name, version=found["version"], line=line)
    if not pins:
        raise InputError(f"{file}: pins no package; give a lock file in the format of requirements")
    return pins


def normalise(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def list_bumps(base: Mapping[str, Pin], candidate: Mapping[str, Pin]) -> tuple[Bump, ...]:
    """The packages that a candidate has in another version, or has alone, by name. Raise InputError where there is none."""
    bumps = tuple(
        Bump(before=base[name].version if name in base else "", pin=pin)
        for name, pin in sorted(candidate.items())
        if name not in base or base[name].version != pin.version
    )
    if not bumps:
        raise InputError("the two lock files pin the same versions; there is nothing to search")
    return bumps


def read_bumps(bumps: Sequence[Bump]) -> Line:
    """The line to search: GOOD has no bump, place N has the first N, the last place has all of them."""
    places = tuple(
        Commit(sha=_digest(bumps[:count]), subject=bumps[count - 1].words if count else "the base's packages")
        for count in range(len(bumps) + 1)
    )
    return Line(good=places[0], commits=places[1:])


def _digest(bumps: Sequence[Bump]) -> str:
    """Forty digits that stand for some packages in their versions."""
    return sha256(json.dumps([[one.pin.name, one.before, one.pin.version] for one in bumps]).encode()).hexdigest()[:40]


def require_base(python: str, bumps: Sequence[Bump]) -> None:
    """Raise InputError where a Python has another version of a package than the base's lock file."""
    versions = json.loads(_PYTHON.call([python, "-c", _ASK], name=python).text)
    for bump in bumps:
        found = versions.get(bump.pin.name, "")
        if found.partition("+")[0] != bump.before.partition("+")[0]:
            raise InputError(
                f"--python {python}: has {bump.pin.name} {found or 'not'}, BASE says {bump.before or 'nothing of it'}; "
                "give the Python that BASE was installed into"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageStore:
    """Where environments with the first packages of a line are made, over the Python that has the base's."""

    engine: Path
    folder: Path
    guard: Guard
    bumps: tuple[Bump, ...]

    def find_checkout(self, sha: str) -> Path:
        """The folder in which a command runs."""
        return self.folder / "environments" / sha[:SHORT]

    def find_python(self, sha: str) -> Path:
        """The Python that has these packages."""
        return self.find_checkout(sha) / "bin" / "python"

    def has(self, sha: str) -> bool:
        """Whether the environment is there, whole."""
        return (self.find_checkout(sha) / "whole").exists()

    def fill(self, command: str, sha: str) -> list[str]:
        """Split a command as a shell would and fill in `{python}`; no shell runs it."""
        return [word.replace("{python}", str(self.find_python(sha).absolute())) for word in shlex.split(command)]

    def make(self, sha: str) -> None:
        """Make the environment of a place, whatever a broken attempt left. Raise CommitError when it cannot be installed."""
        environment = self.find_checkout(sha)
        shutil.rmtree(environment, ignore_errors=True)
        environment.parent.mkdir(parents=True, exist_ok=True)
        try:
            python = lay_over(environment, self.engine)
            if lines := [bump.pin.line for bump in self._find_bumps(sha)]:
                listed = environment / "packages.txt"
                listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
                install_over(python, ["--requirement", str(listed)])
        except RunnerError as error:
            raise CommitError(f"installing: {error}") from None
        (environment / "whole").touch()

    def _find_bumps(self, sha: str) -> tuple[Bump, ...]:
        return next(self.bumps[:count] for count in range(len(self.bumps) + 1) if _digest(self.bumps[:count]) == sha)
