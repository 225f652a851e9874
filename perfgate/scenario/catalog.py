"""What ships: scenarios as whole files, models that meet loads, so that a pair differs in one of the two alone; matrices."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from perfgate.errors import ScenarioError
from perfgate.scenario.schema import Scenario, parse_scenario
from perfgate.storage.stream import STREAM, read_text

SCENARIO_DIR = Path(__file__).parents[1] / "scenarios"
PAIRS = "pairs.toml"
PLAN = "plan.toml"
MATRIX_DIR = Path(__file__).parents[1] / "matrices"
_LOAD_ARGS = re.compile(r"(?ms)^\[server\]\nargs = \[\n(?P<lines>.*?)^\]\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One half of a scenario: the first line of its file is its title, the second the reason for it, both as comments."""

    title: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A scenario that is composed: the name of its model and the name of its load, which are files' names."""

    model: str
    load: str

    @property
    def name(self) -> str:
        """What the pair is called: MODEL-FORMAT-LOAD; behind the format stands what spreads it over GPUs, such as `tp2`."""
        return f"{self.model}-{self.load}"


@functools.cache
def list_pairs() -> Mapping[str, Pair]:
    """The composed scenarios by their names."""
    table = tomllib.loads((SCENARIO_DIR / PAIRS).read_text(encoding="utf-8"))
    pairs = [Pair(model=model, load=load) for model, loads in table.items() for load in loads]
    return {pair.name: pair for pair in pairs}


@functools.cache
def list_scenarios() -> tuple[str, ...]:
    """Name the scenarios that ship with perfgate."""
    whole = {path.stem for path in SCENARIO_DIR.glob("*.toml") if path.name not in (PAIRS, PLAN)}
    return tuple(sorted(whole | set(list_pairs())))


@functools.cache
def read_part(kind: str, name: str) -> Part:
    """Read the half `name` of the kind "models" or "loads"."""
    text = (SCENARIO_DIR / kind / f"{name}.toml").read_text(encoding="utf-8")
    title, reason, rest = text.split("\n", 2)
    return Part(title=title.removeprefix("# "), reason=reason.removeprefix("# "), text=rest)


def compose(name: str) -> str:
    """The TOML text of the shipped scenario `name`: its file as it stands, or a model's part and a load's under one head.

    A load may bring arguments of the server, a line each; they come behind the model's own, and the last one said counts.

    A session keeps this text, so that it can be judged where no perfgate of the same release lies. KeyError for a name that
    does not ship.
    """
    if name not in list_pairs():
        return (SCENARIO_DIR / f"{name}.toml").read_text(encoding="utf-8")
    pair = list_pairs()[name]
    model, load = read_part("models", pair.model), read_part("loads", pair.load)
    head = {"name": name, "title": f"{model.title}: {load.title}"}
    lines = [
        f"# {load.reason}",
        f"# {model.reason}",
        "schema = 1",
        *(f"{key} = {json.dumps(text)}" for key, text in head.items()),
    ]
    brought = _LOAD_ARGS.search(load.text)
    if brought is None:
        return "\n".join([*lines, "", model.text, load.text])
    served = model.text.replace("\n]\n", f"\n{brought['lines']}]\n", 1)
    return "\n".join([*lines, "", served, _LOAD_ARGS.sub("", load.text)])


def load_scenario(name_or_path: str) -> Scenario:
    """Read a shipped scenario by name, or a file by path. Raise ScenarioError with file, line and key."""
    return parse_scenario(*read_scenario_text(name_or_path))


def read_scenario_text(name_or_path: str) -> tuple[str, str]:
    """Return the TOML text of a scenario and the name of the file it came from."""
    if not _is_path(name_or_path):
        return _read_shipped(name_or_path), name_or_path
    path = Path(name_or_path)
    try:
        return read_text(path), str(path)
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such scenario file; `perfgate scenarios` lists those that ship") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: is a directory; give the .toml file itself") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read as text ({error})") from error


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith(".toml") or Path(name_or_path) == STREAM


def _read_shipped(name: str) -> str:
    """The text of a shipped scenario. Raise ScenarioError for a name that does not ship, with the nearest one that does."""
    if name not in list_scenarios():
        near = "".join(f"did you mean {known}? " for known in get_close_matches(name, list_scenarios(), n=1))
        raise ScenarioError(
            f"unknown scenario {name!r}: {near}`perfgate scenarios` lists those that ship; any other is a path of a .toml file"
        )
    return compose(name)


def list_matrices() -> tuple[str, ...]:
    """Name the matrices that ship with perfgate."""
    return tuple(sorted(path.stem for path in MATRIX_DIR.glob("*.toml")))


def find_matrix(name_or_path: str) -> Path:
    """The file of a shipped matrix by its name, or of any other by its path. Raise ScenarioError for an unknown name."""
    if _is_path(name_or_path):
        return Path(name_or_path)
    if name_or_path not in list_matrices():
        known = ", ".join(list_matrices())
        raise ScenarioError(f"unknown matrix {name_or_path!r}: choose from {known}, or give a path to a .toml file")
    return MATRIX_DIR / f"{name_or_path}.toml"


def read_matrix_text(path: Path) -> str:
    """Return the text of a matrix file. Raise ScenarioError when it cannot be read."""
    try:
        return read_text(path)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror}); give a matrix file: docs/how-to/matrix.md") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: cannot be read as text ({error})") from None
