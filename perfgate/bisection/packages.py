"""The packages by which two lock files differ, as places of a search, and environments that have some of them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from perfgate.bisection.guard import Guard
from perfgate.bisection.locks import Bump, Pin
from perfgate.bisection.repository import SHORT, Commit, Line
from perfgate.bisection.trial import CommitError
from perfgate.errors import EngineError, InputError, RunnerError
from perfgate.machine.tools import Tool
from perfgate.serving.engine.environments import install_over, lay_over

_PYTHON = Tool(timeout_s=120.0, missing=EngineError, failed=EngineError, hint="give the Python that BASE was installed into")
_ASK = """
import importlib.metadata, json, re
# Of two packages of one name the first on the path is imported.
every = reversed(list(importlib.metadata.distributions()))
found = {re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower(): one.version for one in every}
print(json.dumps(found))
"""


def read_bumps(bumps: Sequence[Bump]) -> Line:
    """The line to search: GOOD has no bump, place N has the first N, the last place has all of them.

    Raise InputError where there is none.
    """
    if not bumps:
        raise InputError("the two lock files pin the same versions; there is nothing to search")
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
    versions = _ask_versions(python)
    for bump in bumps:
        found = versions.get(bump.pin.name, "")
        if not _is_same(found, bump.before):
            raise InputError(
                f"--engine {python}: has {bump.pin.name} {found or 'not'}, BASE says {bump.before or 'nothing of it'}; "
                "give the Python that BASE was installed into"
            )


def install_pins(python: Path, pins: Iterable[Pin]) -> tuple[Pin, ...]:
    """Install into an environment what its Python has in another version, or lacks; return what was installed.

    Nothing that they require comes with them. Raise RunnerError where pip fails, or where another version is found afterwards.
    """
    versions = _ask_versions(str(python))
    wanted = tuple(pin for pin in pins if not _is_same(versions.get(pin.name, ""), pin.version))
    if not wanted:
        return ()
    listed = python.parents[1] / "packages.txt"
    listed.write_text("".join(f"{pin.line}\n" for pin in wanted), encoding="utf-8")
    install_over(python, ["--requirement", str(listed)])
    versions = _ask_versions(str(python))
    for pin in wanted:
        found = versions.get(pin.name, "")
        if not pin.is_conditional and not _is_same(found, pin.version):
            raise RunnerError(
                f"{python}: has {pin.name} {found or 'not'} after {pin.version} was installed; look at pip's settings"
            )
    return wanted


def _ask_versions(python: str) -> dict[str, str]:
    """The version of each package that a Python finds, by normalised name."""
    found: dict[str, str] = json.loads(_PYTHON.call([python, "-c", _ASK], name=python).text)
    return found


def _is_same(found: str, wanted: str) -> bool:
    """Whether a version is the one wanted; how it was built (`+cu130`) counts where that is wanted too."""
    return wanted in (found, found.partition("+")[0])


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
        """Make the environment of a place, whatever a broken attempt left.

        Raise CommitError when its packages cannot be installed, RunnerError when there cannot be any environment here.
        """
        environment = self.find_checkout(sha)
        shutil.rmtree(environment, ignore_errors=True)
        environment.parent.mkdir(parents=True, exist_ok=True)
        python = lay_over(environment, self.engine)
        try:
            install_pins(python, (bump.pin for bump in self._find_bumps(sha)))
        except RunnerError as error:
            raise CommitError(f"installing: {error}") from None
        (environment / "whole").touch()

    def _find_bumps(self, sha: str) -> tuple[Bump, ...]:
        return next(self.bumps[:count] for count in range(len(self.bumps) + 1) if _digest(self.bumps[:count]) == sha)
