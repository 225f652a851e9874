"""Run one exhibit and its fixed twin through the gate, and store the two verdicts beside it.

Usage: python -m benchmarks.museum.run NAME [--home build/museum] [--python PYTHON] [--model FOLDER]
       python -m benchmarks.museum.run NAME --taken broken FOLDER --taken fixed FOLDER   (sessions of another machine)

The exhibit must be committed as it stands: what is expected is written before it is run. Called again, it goes on where it was
cut off, and does nothing where both verdicts are stored. The gate is the one that ships; the exhibit only sets what each arm
serves with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks.museum.exhibits import ExhibitArm, Placed, find_own_scenario, load_exhibit
from benchmarks.museum.patches import VARIABLE, describe_proof
from benchmarks.museum.results import ExhibitResult, read_result, summarise, write_result
from perfgate.core import Arm
from perfgate.errors import InputError, PerfgateError
from perfgate.results.records import SESSION_FILE, SessionRecord, read_record
from perfgate.storage.rounding import VERDICT_FILE

ROOT = Path(__file__).parents[2]
SIDES = ("broken", "fixed")
# PASS, REGRESSION, and what is inconclusive or invalid: all are answers.
ANSWERS = (0, 1, 3)
Execute = Callable[[Sequence[str], Mapping[str, str]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Museum:
    """Where sessions lie, the Python that serves, a model's folder where one is needed, and what runs commands."""

    home: Path
    python: str = sys.executable
    model: Path | None = None
    execute: Execute

    @property
    def site(self) -> Path:
        """What lets SGLang find the patches."""
        return self.home / "site"


def execute(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, with its output on this terminal."""
    return subprocess.run(list(argv), env=dict(environment), check=False).returncode


def find_prediction(placed: Placed) -> str:
    """The commit that holds the exhibit as it stands. Raise InputError where none does: a prediction comes before its run."""
    return find_committed(placed.folder / "exhibit.toml")


def find_committed(path: Path) -> str:
    """The commit that holds a file as it stands. Raise InputError where none does."""
    git = ["git", "-C", str(path.parent)]
    changed = subprocess.run([*git, "status", "--porcelain", "--", str(path)], capture_output=True, text=True, check=False)
    found = subprocess.run([*git, "log", "-1", "--format=%H", "--", str(path)], capture_output=True, text=True, check=False)
    if changed.returncode or changed.stdout.strip() or not found.stdout.strip():
        raise InputError(f"{path}: is not committed as it stands; commit it before the run, so that it predicts")
    return found.stdout.strip()


def write_plug_in(site: Path, register: str = "benchmarks.museum.patches:register") -> None:
    """Write into `site` what lets SGLang find a plug-in: by default, the patches of this checkout."""
    made = site / "perfgate_museum-0.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: perfgate-museum\nVersion: 0\n", encoding="utf-8")
    entry = f"[sglang.srt.plugins]\nperfgate-museum = {register}\n"
    (made / "entry_points.txt").write_text(entry, encoding="utf-8")


def build_argv(placed: Placed, side: str, museum: Museum, folder: Path) -> list[str]:
    """The command of the gate for one side of an exhibit."""
    told = placed.exhibit.reenactment
    candidate = told.broken if side == "broken" else told.fixed
    own = find_own_scenario(placed.exhibit.scenario)
    return [
        sys.executable, "-m", "perfgate", "gate", str(own) if own.is_file() else placed.exhibit.scenario,
        "--python", museum.python,
        *(("--model", str(museum.model)) if museum.model else ()),
        *_list_arm(placed.name, told.base, "both"),
        *_list_arm(placed.name, candidate, "candidate"),
        *(("--expect-log", describe_proof(placed.name, candidate.patch)) if candidate.patch != "none" else ()),
        "--profile", "never",
        "--out", str(folder),
        *(("--resume",) if (folder / SESSION_FILE).exists() else ()),
    ]  # fmt: skip


def _list_arm(name: str, arm: ExhibitArm, whose: str) -> Iterator[str]:
    for argument in arm.args:
        yield f"--{whose}-arg={argument}"
    for key, value in arm.env.items():
        yield f"--{whose}-env={key}={value}"
    if arm.patch != "none":
        yield f"--{whose}-env={VARIABLE}={name}:{arm.patch}"


def build_environment(museum: Museum) -> dict[str, str]:
    """The variables of the gate: the patches, and this checkout, are only on PYTHONPATH."""
    paths = [str(museum.site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_exhibit(placed: Placed, museum: Museum) -> ExhibitResult:
    """Run what is missing of both sides, and store each verdict as soon as there is one."""
    predicted = find_prediction(placed)
    write_plug_in(museum.site)
    result = read_result(placed) or ExhibitResult(digest=placed.digest, predicted=predicted)
    for side in SIDES:
        if getattr(result, side) is None:
            result = store_side(placed, result, side, run_side(placed, side, museum))
    return result


def take_sides(placed: Placed, folders: Mapping[str, Path]) -> ExhibitResult:
    """Store the verdicts of sessions that were measured elsewhere, by side. Raise InputError for one of something else."""
    result = read_result(placed) or ExhibitResult(digest=placed.digest, predicted=find_prediction(placed))
    for side, folder in folders.items():
        require_side(placed, side, read_record(folder))
        result = store_side(placed, result, side, folder)
    return result


def store_side(placed: Placed, result: ExhibitResult, side: str, folder: Path) -> ExhibitResult:
    """Store the verdict of one side's session beside what is known of the other."""
    found = summarise(folder)
    known = replace(result, broken=found) if side == "broken" else replace(result, fixed=found)
    write_result(placed, known)
    return known


def require_side(placed: Placed, side: str, record: SessionRecord) -> None:
    """Raise InputError where an arm of a session does not serve as the exhibit says."""
    told = placed.exhibit.reenactment
    served = record.arms[Arm.BASE]
    common = served.argv[: len(served.argv) - len(told.base.args)]
    for arm, asked in ((Arm.BASE, told.base), (Arm.CANDIDATE, getattr(told, side).follow(told.base))):
        served = record.arms[arm]
        is_same = (
            served.argv == (*common, *asked.args)
            and asked.env.items() <= served.env.items()
            and served.env.get(VARIABLE) == (f"{placed.name}:{asked.patch}" if asked.patch != "none" else None)
        )
        if not is_same:
            raise InputError(f"{placed.name}: {side}: {arm.value} of that session served something else; give another folder")


def run_side(placed: Placed, side: str, museum: Museum) -> Path:
    """The folder of a finished session of one side. Raise InputError where the gate gave no answer."""
    # A changed exhibit is another one: what was measured of the old text is never taken for it.
    folder = museum.home / f"{placed.name}-{placed.digest}" / side
    if (folder / VERDICT_FILE).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    code = museum.execute(build_argv(placed, side, museum, folder), build_environment(museum))
    if code not in ANSWERS or not (folder / VERDICT_FILE).exists():
        raise InputError(f"{placed.name}: the gate ended with {code} and no verdict of {side}; see {folder}, then run it again")
    return folder


@click.command()
@click.argument("name")
@click.option("--home", type=click.Path(path_type=Path), default=ROOT / "build" / "museum", help="Where sessions are kept.")
@click.option("--python", default=sys.executable, help="Python with the engine.")
@click.option("--model", type=click.Path(path_type=Path), help="Folder of the scenario's model.")
@click.option(
    "--taken",
    type=(click.Choice(SIDES), click.Path(path_type=Path)),
    multiple=True,
    help="A side, and a session of it that another machine measured; repeatable.",
)
def main(name: str, home: Path, python: str, model: Path | None, taken: tuple[tuple[str, Path], ...]) -> None:
    """Run the exhibit NAME and its fixed twin, or take sessions of it that another machine measured."""
    museum = Museum(home=home.resolve(), python=python, model=model, execute=execute)
    try:
        placed = load_exhibit(name)
        result = take_sides(placed, dict(taken)) if taken else run_exhibit(placed, museum)
    except PerfgateError as error:
        print(f"museum: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    for side in SIDES:
        found = getattr(result, side)
        if found is None:
            continue
        print(f"{name} {side}: {found.outcome.value}, {found.blocks} blocks, {found.minutes:.1f} minutes {found.teller}")


if __name__ == "__main__":
    main()
