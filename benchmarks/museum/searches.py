"""Search the history of an exhibit for its fault, as it was planned, and store what came.

Usage: python -m benchmarks.museum.searches NAME [--home build/museum] [--python PYTHON] [--model FOLDER]

The search is the one of `searches.toml`, which must be committed as it stands: what is expected is written before it is run.
Called again, it goes on where it was cut off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import ConfigDict, Field

from benchmarks.museum.exhibits import HERE, Placed, load_exhibit
from benchmarks.museum.history import FaultyHistory, find_history, write_history
from benchmarks.museum.hooks import Variant
from benchmarks.museum.patches import describe_proof
from benchmarks.museum.run import ROOT, find_committed
from perfgate.bisection.record import JOURNAL_FILE
from perfgate.errors import InputError, PerfgateError
from perfgate.metrics import METRICS
from perfgate.scenario.settings import read_settings
from perfgate.scenario.toml import suggest

FILE = "searches.toml"
STORE = ROOT / "benchmarks" / "bisect"
RESULT = "result.json"
ANSWERS = (0, 3)
"""A culprit was found, or not."""

Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ask = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Whether the right commit is expected to be found, within how many minutes of the machine, and why."""

    is_found: bool
    most_minutes: Minutes
    why: Annotated[str, Field(min_length=1)]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSearch:
    """A history of so many commits, of which `culprit` brings the fault, searched by `metric` for so many minutes at most."""

    commits: Annotated[int, Field(ge=2)]
    culprit: Annotated[int, Field(ge=1)]
    metric: str
    budget_minutes: Minutes
    expected: Expected
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        """A metric that does not exist could not be searched by."""
        if self.metric not in METRICS:
            raise ValueError(f"metric: {self.metric}: no such metric; {suggest(self.metric, METRICS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    searches: Mapping[str, PlannedSearch]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Searcher:
    """Where searches lie, where their results go, the Python that serves, a model's folder, and what runs a command."""

    home: Path
    store: Path = STORE
    python: str = sys.executable
    model: Path | None = None
    ask: Ask


def load_searches(home: Path = HERE) -> Mapping[str, PlannedSearch]:
    """Every planned search by the name of its exhibit. Raise InputError naming the field that is wrong."""
    return read_settings(home / FILE, _Planned, "docs/how-to/bisect.md").searches


def ask(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command to its end; its exit code and what it printed, while it tells of itself on this terminal."""
    done = subprocess.run(list(argv), env=dict(environment), stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def run_search(name: str, searcher: Searcher, home: Path = HERE) -> Mapping[str, Any]:
    """Make the history where there is none yet, search it, and store the journal and the answer beside what was expected.

    Raise InputError for a search that is not planned, not committed, gave no answer, or in which the fault never ran.
    """
    planned = load_searches(home)
    if name not in planned:
        raise InputError(f"{name}: no such search; {suggest(name, planned)}")
    predicted = find_committed(home / FILE)
    placed, plan = load_exhibit(name), planned[name]
    folder = searcher.home / f"{name}-history"
    made = find_history(folder, plan.culprit) if folder.exists() else write_history(placed, folder, plan.commits, plan.culprit)
    code, told = searcher.ask(build_argv(placed, plan, made, searcher), {**os.environ, "PYTHONPATH": str(ROOT)})
    if code not in ANSWERS:
        raise InputError(f"{name}: the search ended with {code} and no answer; see {searcher.home}, then run it again")
    require_proof(name, find_out(made))
    answer = json.loads(told)
    result = {
        "predicted": predicted,
        "is_right": answer["culprit"] == made.culprit,
        "as_expected": (answer["culprit"] == made.culprit) == plan.expected.is_found
        and answer["minutes"] <= plan.expected.most_minutes,
        "answer": {
            key: answer[key] for key in ("outcome", "minutes", "blocks", "measurements", "builds", "metric", "warnings")
        },
    }
    kept = searcher.store / name
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(find_out(made) / JOURNAL_FILE, kept / JOURNAL_FILE)
    (kept / RESULT).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def require_proof(name: str, out: Path) -> None:
    """Raise InputError where the exhibit's fault ran in no server: then all commits serve alike, and no answer counts."""
    proof = describe_proof(name, Variant.BROKEN)
    if not any(proof in log.read_text(encoding="utf-8", errors="replace") for log in out.glob("measurements/*/logs/*.log")):
        raise InputError(f"{name}: no server's log in {out} has {proof!r}; remove it, and search on a release that does")


def find_out(made: FaultyHistory) -> Path:
    """Where the search of a history lies."""
    return made.repository.with_name(f"{made.repository.name}-search")


def build_argv(placed: Placed, plan: PlannedSearch, made: FaultyHistory, searcher: Searcher) -> list[str]:
    """The command of the search: the one that ships, with what the exhibit's base serves with in all commits."""
    out = find_out(made)
    return [
        sys.executable, "-m", "perfgate",
        *made.list_words(placed, plan.budget_minutes, out),
        "--metric", plan.metric,
        "--python", searcher.python,
        *(("--model", str(searcher.model)) if searcher.model else ()),
        "--format", "json",
        *(("--resume",) if out.exists() else ()),
    ]  # fmt: skip


@click.command()
@click.argument("name")
@click.option("--home", type=click.Path(path_type=Path), default=ROOT / "build" / "museum", help="Where searches are kept.")
@click.option("--python", default=sys.executable, help="Python with the engine.")
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the scenario's model.")
def main(name: str, home: Path, python: str, model: Path | None) -> None:
    """Search the history of the exhibit NAME."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        result = run_search(name, Searcher(home=home.resolve(), python=python, model=model, ask=ask))
    except PerfgateError as error:
        print(f"museum: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
