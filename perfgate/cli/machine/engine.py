"""`perfgate engine`: the serving engine of the CPU scenarios."""

from __future__ import annotations

import sys

import click

from perfgate.cli.output import add_format_option, print_json
from perfgate.serving.engine.engine_install import PACKAGES, REQUIRED, install_engine, read_version


@click.group(name="engine")
def command() -> None:
    """Install or describe the CPU serving engine in the Python that runs perfgate."""


@command.command()
@add_format_option
def install(style: str) -> None:
    """Install SGLang beside the packages of the extra `cpu-engine`; does nothing when it is there."""
    installed = install_engine()
    if style == "json":
        print_json({"python": sys.executable, "installed": installed})
        return
    click.echo(f"installed {', '.join(installed)}" if installed else f"engine is complete in {sys.executable}")


@command.command()
@add_format_option
def show(style: str) -> None:
    """Print the versions that serve."""
    versions = {package: read_version(package) for package in [pin.partition("==")[0] for pin in PACKAGES] + list(REQUIRED)}
    if style == "json":
        print_json(versions)
        return
    for package, version in versions.items():
        click.echo(f"{package:16} {version}")
