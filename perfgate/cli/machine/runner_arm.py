"""`perfgate runner arm`: an environment for one arm over the machine's engine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from perfgate.bisection.locks import list_pins, read_pair
from perfgate.bisection.packages import install_pins
from perfgate.cli.output import FILE, add_format_option, print_result
from perfgate.errors import InputError
from perfgate.runner.settings import load_runner
from perfgate.scenario.selection import read_table
from perfgate.serving.engine.environments import build_arm


@click.command()
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
@click.option("--engine", metavar="PYTHON", help="Python with the engine (default: the settings' engine, else this one).")
@click.option(
    "--trees", type=FILE, nargs=2, metavar="OWN OTHER", help="Install packages that OWN pins in another version than OTHER."
)
@add_format_option
def arm(source: Path, target: Path, engine: str | None, trees: tuple[Path, Path] | None, style: str) -> int:
    """Build an environment at TARGET that runs the package in SOURCE over the machine's engine.

    With --trees (working trees of this arm and the other): packages that the two pin in different versions are installed in
    the version of this arm, unless the engine's environment has it.
    """
    if engine is None:
        try:
            configured = load_runner().engine
        except InputError:
            configured = None
        engine = str(configured or sys.executable)
    locks = read_pair(*trees, read_table().pins) if trees else None
    python = build_arm(source, target, Path(engine))
    installed = install_pins(python, list_pins(*locks)) if locks else ()
    packages = [f"{pin.name} {pin.version}" for pin in installed]
    print_result(style, {"python": python, "packages": packages}, python, *packages)
    return 0
