"""An exhibit: a slow-down that users of an engine reported, how it is re-enacted, and what the gate is expected to say.

Each lies in a folder of its own, `NAME/exhibit.toml`, committed before it is run; `result.json` beside it is what came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from benchmarks.museum.patches import PATCHES
from perfgate.core import Outcome
from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.scenario.catalog import list_scenarios
from perfgate.scenario.settings import read_settings
from perfgate.scenario.toml import suggest

HERE = Path(__file__).parent
FILE = "exhibit.toml"
PAGE = "docs/evidence/museum.md"
Variant = Literal["none", "fixed", "broken"]
Text = Annotated[str, Field(min_length=1)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was reported: where, what caused it, how large it was in which metric, and under which load."""

    url: Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$")]
    cause: Text
    size: Text
    load: Text
    __pydantic_config__ = _STRICT

    @property
    def name(self) -> str:
        """The thread in the way that GitHub writes it: `owner/repository#number`."""
        owner, repository, _, number = self.url.removeprefix("https://github.com/").split("/")
        return f"{owner}/{repository}#{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhibitArm:
    """What one side serves with, beyond the scenario: arguments, variables, and the variant of the exhibit's patch."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    patch: Variant = "none"
    __pydantic_config__ = _STRICT

    def follow(self, base: ExhibitArm) -> ExhibitArm:
        """What a candidate serves with: the base's arguments and variables before its own, and the base's patch without one."""
        patch = base.patch if self.patch == "none" else self.patch
        return ExhibitArm(args=(*base.args, *self.args), env={**base.env, **self.env}, patch=patch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reenactment:
    """How it comes about here. `words` say what of the original runs; the arms are the base, the slow one and the twin.

    Candidates get the base's arguments and variables before their own, so that a later argument replaces an earlier one.
    """

    kind: Literal["patch", "flag"]
    words: Text
    base: ExhibitArm = field(default_factory=ExhibitArm)
    broken: ExhibitArm = field(default_factory=ExhibitArm)
    fixed: ExhibitArm = field(default_factory=ExhibitArm)
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        """Arms that do not differ would show nothing."""
        if self.broken == self.base:
            raise ValueError("broken: is the base itself; say by args, env or patch what makes it slower")
        if self.kind == "flag" and {self.base.patch, self.broken.patch, self.fixed.patch} != {"none"}:
            raise ValueError("kind: a flag takes no patch; write kind = 'patch'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the gate is expected to say, written before any run, and why."""

    outcome: Outcome
    metric: str
    why: Text
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        """A metric that does not exist could not tell anything."""
        if self.metric not in METRICS:
            raise ValueError(f"metric: {self.metric}: no such metric; {suggest(self.metric, METRICS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One reported slow-down. `scenario` is one that ships, or lies in scenarios/ beside this."""

    title: Text
    machine: Literal["cpu", "h200"]
    scenario: Text
    report: Report
    reenactment: Reenactment
    expected: Prediction
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An exhibit with its name and folder. `digest` is that of its file: a result is of the exhibit as it was then."""

    name: str
    folder: Path
    exhibit: Exhibit
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A report that is not re-enacted here, and why."""

    url: Text
    size: Text
    reason: Text
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Absences:
    """The reports of absent.toml."""

    absent: tuple[Absent, ...]
    __pydantic_config__ = _STRICT


def load_exhibit(name: str, home: Path = HERE) -> Placed:
    """Read `NAME/exhibit.toml`. Raise InputError, in a line that names the file and the field, for what cannot be used."""
    folder = home / name
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{name}: no such exhibit; {suggest(name, list_names(home))}")
    exhibit = read_settings(path, Exhibit, PAGE)
    patched = {exhibit.reenactment.base.patch, exhibit.reenactment.broken.patch, exhibit.reenactment.fixed.patch} - {"none"}
    if patched and name not in PATCHES:
        raise InputError(f"{path}: reenactment: patches.py has no patch {name}; add it there")
    if exhibit.scenario not in list_scenarios() and not find_own_scenario(exhibit.scenario, home).is_file():
        raise InputError(
            f"{path}: scenario: {exhibit.scenario}: no such scenario; {suggest(exhibit.scenario, list_scenarios())}"
        )
    return Placed(name=name, folder=folder, exhibit=exhibit, digest=hashlib.sha256(path.read_bytes()).hexdigest()[:12])


def find_own_scenario(name: str, home: Path = HERE) -> Path:
    """Where a scenario lies that was written for exhibits alone."""
    return home / "scenarios" / f"{name}.toml"


def list_names(home: Path = HERE) -> tuple[str, ...]:
    """The names of all exhibits."""
    return tuple(sorted(path.parent.name for path in home.glob(f"*/{FILE}")))


def load_all(home: Path = HERE) -> tuple[Placed, ...]:
    """Every exhibit, by name."""
    return tuple(load_exhibit(name, home) for name in list_names(home))


def load_absent(home: Path = HERE) -> tuple[Absent, ...]:
    """The reports that are not re-enacted. Raise InputError as `load_exhibit` does."""
    return read_settings(home / "absent.toml", Absences, PAGE).absent
