"""`perfgate deps`: which package of a new lock file made it slower."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfgate.bisection.guard import Guard
from perfgate.bisection.locks import Lock, find_lock, list_bumps, read_lock, read_pair
from perfgate.bisection.packages import PackageStore, read_bumps, require_base
from perfgate.cli.completion import complete_scenario
from perfgate.cli.measuring.bisect import COMMANDED, SEARCHED, SERVED, check_search, plan_search, run_search
from perfgate.cli.output import FILE, say
from perfgate.cli.sections import SectionCommand, add_options, option_of
from perfgate.core import Outcome
from perfgate.gate.case import load_case
from perfgate.scenario.selection import read_table

_search_option = option_of("The search")
_SUBJECT = (
    _search_option("--engine", default=sys.executable, metavar="PYTHON", help="Python with the packages of BASE."),
    _search_option(
        "--scenario", metavar="NAME|FILE", shell_complete=complete_scenario, help="Serve the engine with each set of packages."
    ),
    _search_option("--after", type=FILE, metavar="RESULT_DIR", help="Search only where this session is a REGRESSION."),
    _search_option("--command", "shell", metavar="CMD", help="Run this with each set of packages: it prints a number or JSON."),
)


@click.command(name="deps", cls=SectionCommand)
@click.argument("base", type=FILE)
@click.argument("candidate", type=FILE)
@add_options(*_SUBJECT, *SEARCHED, *SERVED, *COMMANDED)
def command(base: Path, candidate: Path, **options: Any) -> int:
    """Find the package that made it slower, between two lock files.

    BASE and CANDIDATE are lock files as pip-compile writes them, or working trees that have a file which
    perfgate/scenarios/plan.toml names. CANDIDATE is compared with BASE as in `perfgate gate`. After a loss, halves of its
    packages are set back to BASE's versions until one package is certain enough. {python} in --command stands for the Python
    that has the packages. Exit code 0 if it found a package, else 3. The same command with --resume continues an interrupted
    search.
    """
    options |= {"python": options["engine"], "package": "", "build": "", "repo": None}
    check_search(options)
    if reason := _find_no_search(base, candidate, options["after"]):
        say(f"not searched: {reason}", err=True)
        return 0
    pins, wanted = _read_locks(base, candidate)
    bumps = list_bumps(pins, wanted)
    line = read_bumps(bumps)
    require_base(options["engine"], bumps)
    for name in sorted(pins.pins.keys() - wanted.pins.keys()):
        say(f"warning: {name} is in {base} alone; it stays installed in all that is measured", err=True)
    for requirement in sorted(pins.loose ^ wanted.loose):
        say(f"warning: {requirement} is in one of both and pins no version; it is not searched", err=True)

    def build_store(guard: Guard) -> PackageStore:
        return PackageStore(engine=Path(options["engine"]), folder=options["out"], guard=guard, bumps=bumps)

    return run_search(line, options, replace(plan_search(options), build_checkouts=build_store))


def _read_locks(base: Path, candidate: Path) -> tuple[Lock, Lock]:
    """What both pin. Raise InputError where one is no lock file and no tree with one."""
    names = read_table().pins
    return read_lock(find_lock(base, names)), read_lock(find_lock(candidate, names))


def _find_no_search(base: Path, candidate: Path, session: Path | None) -> str:
    """Why there is nothing to search after a session; empty where there is, or where none is named."""
    if session is None:
        return ""
    locks = read_pair(base, candidate, read_table().pins)
    if locks is None or not list_bumps(*locks):
        return "the trees pin the same packages"
    outcome = load_case(session).verdict.outcome
    return "" if outcome is Outcome.REGRESSION else f"{session} is {outcome.value}"
