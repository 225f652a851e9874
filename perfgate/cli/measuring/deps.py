"""`perfgate deps`: which package of a new lock file made it slower."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfgate.bisection.guard import Guard
from perfgate.bisection.packages import PackageStore, list_bumps, read_bumps, read_lock, require_base
from perfgate.cli.measuring.bisect import COMMANDED, SEARCHED, SERVED, check_search, plan_search, run_search
from perfgate.cli.output import FILE
from perfgate.cli.sections import SectionCommand, add_options, option_of

_search_option = option_of("The search")
_SUBJECT = (
    _search_option("--engine", default=sys.executable, metavar="PYTHON", help="Python that BASE was installed into."),
    _search_option("--scenario", metavar="NAME|FILE", help="Serve the engine with each set of packages."),
    _search_option("--command", "shell", metavar="CMD", help="Run this with each set of packages: it prints a number or JSON."),
)


@click.command(name="deps", cls=SectionCommand)
@click.argument("base", type=FILE)
@click.argument("candidate", type=FILE)
@add_options(*_SUBJECT, *SEARCHED, *SERVED, *COMMANDED)
def command(base: Path, candidate: Path, **options: Any) -> int:
    """Find the package that made it slower, between two lock files.

    BASE and CANDIDATE pin versions, as pip-compile writes them. CANDIDATE is measured against BASE as `perfgate gate` does it;
    on a loss its packages are put back, half at a time, until one is sure enough. {python} in --command stands for the Python
    that has the packages. Exit code 0 when a package was found, 3 when not. After a crash the same command with --resume goes
    on.
    """
    options |= {"python": options["engine"], "package": "", "build": "", "repo": None}
    check_search(options)
    pins, wanted = read_lock(base), read_lock(candidate)
    bumps = list_bumps(pins, wanted)
    require_base(options["engine"], bumps)
    for name in sorted(pins.keys() - wanted.keys()):
        click.echo(f"warning: {name} is in {base} alone; it stays installed in all that is measured", err=True)

    def build_store(guard: Guard) -> PackageStore:
        return PackageStore(engine=Path(options["engine"]), folder=options["out"], guard=guard, bumps=bumps)

    return run_search(read_bumps(bumps), options, replace(plan_search(options), build_checkouts=build_store))
