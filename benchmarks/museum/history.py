"""A small git repository in which one commit brings an exhibit's fault, for `perfgate bisect`; the others change nothing.

Usage: python -m benchmarks.museum.history NAME FOLDER [--commits 16] [--culprit 7]

Each commit holds a package that SGLang finds as a plug-in, and that puts the exhibit's patch into the server: the fixed variant
before the culprit, the broken one from it on. Install nothing: bisect installs each checkout over the engine's environment.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.museum.exhibits import Placed, find_own_scenario, load_exhibit
from benchmarks.museum.hooks import Variant
from benchmarks.museum.patches import PATCHES, VARIABLE
from benchmarks.museum.run import ROOT
from perfgate.errors import InputError, PerfgateError

PACKAGE = "perfgate_museum_history"
PROJECT = f"""[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "perfgate-museum-history"
version = "0"

[project.entry-points."sglang.srt.plugins"]
perfgate-museum = "{PACKAGE}:register"

[tool.setuptools]
packages = ["{PACKAGE}"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyHistory:
    """A repository, its first and last commit, and the one that a search should name."""

    repository: Path
    good: str
    bad: str
    culprit: str

    def write_command(self, placed: Placed) -> str:
        """The search, to be pasted. The patches of this checkout are found by PYTHONPATH."""
        words = self.list_words(placed, 60.0, Path(f"{self.repository}-search"))
        return f"PYTHONPATH={ROOT} perfgate {shlex.join(words)}"

    def list_words(self, placed: Placed, budget_minutes: float, out: Path) -> list[str]:
        """The search's command line behind `perfgate`; all commits are served with what the exhibit's base is served with."""
        base, own = placed.exhibit.reenactment.base, find_own_scenario(placed.exhibit.scenario)
        return [
            "bisect", self.good, self.bad,
            "--scenario", str(own) if own.is_file() else placed.exhibit.scenario,
            "--repo", str(self.repository),
            *(f"--both-arg={argument}" for argument in base.args),
            *(f"--both-env={name}={value}" for name, value in base.env.items()),
            "--budget", f"{budget_minutes:g}",
            "--out", str(out),
        ]  # fmt: skip


def write_history(placed: Placed, folder: Path, commits: int, culprit: int) -> FaultyHistory:
    """Make the repository in `folder`, which is new. Raise InputError for an exhibit or a culprit that cannot be."""
    if placed.name not in PATCHES:
        raise InputError(f"{placed.name}: is no patch; a history is made of one that is")
    if not 1 <= culprit < commits:
        raise InputError(f"--culprit {culprit}: must lie behind the first commit and among {commits}")
    if folder.exists():
        raise InputError(f"{folder}: exists; give a new folder")
    (folder / PACKAGE).mkdir(parents=True)
    _git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    hashes = [_commit(folder, placed.name, number, culprit) for number in range(commits)]
    return FaultyHistory(repository=folder, good=hashes[0], bad=hashes[-1], culprit=hashes[culprit])


def find_history(folder: Path, culprit: int) -> FaultyHistory:
    """The repository that was made in `folder` before. Raise InputError where it is none."""
    hashes = _git(folder, "rev-list", "--reverse", "main").split()
    return FaultyHistory(repository=folder, good=hashes[0], bad=hashes[-1], culprit=hashes[culprit])


def _commit(folder: Path, name: str, number: int, culprit: int) -> str:
    variant = Variant.BROKEN if number >= culprit else Variant.FIXED
    lines = [
        "import os",
        "",
        f"WANTED = {f'{name}:{variant}'!r}",
        f"STEP = {number}",
        "",
        "",
        "def register():",
        f"    os.environ[{VARIABLE!r}] = WANTED",
        "    from benchmarks.museum.patches import register as apply",
        "",
        "    apply()",
        "",
    ]
    (folder / PACKAGE / "__init__.py").write_text("\n".join(lines), encoding="utf-8")
    _git(folder, "add", ".")
    # No commit tells by its words which one it is.
    _git(folder, "-c", "user.name=museum", "-c", "user.email=museum@localhost", "commit", "--quiet", "-m", f"step {number}")
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{folder}: git {words[0]} failed: {done.stderr.strip()[:200]}")
    return done.stdout.strip()


@click.command()
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--commits", type=click.IntRange(min=2, max=1000), default=16, show_default=True)
@click.option("--culprit", type=int, default=7, show_default=True, help="The number of the commit that brings the fault.")
def main(name: str, folder: Path, commits: int, culprit: int) -> None:
    """Make a repository of the exhibit NAME in FOLDER, and print the search."""
    try:
        placed = load_exhibit(name)
        made = write_history(placed, folder.resolve(), commits, culprit)
    except PerfgateError as error:
        print(f"museum: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(f"the culprit is {made.culprit}")
    print(made.write_command(placed))


if __name__ == "__main__":
    main()
