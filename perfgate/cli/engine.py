"""`perfgate engine`: the serving engine of the CPU scenarios."""

from __future__ import annotations

import sys

import click

from perfgate.serving.engine_install import PACKAGES, REQUIRED, install_engine, read_version


@click.group(name="engine")
def command() -> None:
    """Install or describe the CPU serving engine in the Python that runs perfgate."""


@command.command()
def install() -> None:
    """Install SGLang beside the packages of the extra `cpu-engine`; does nothing when it is there."""
    installed = install_engine()
    click.echo(f"installed {', '.join(installed)}" if installed else f"engine is complete in {sys.executable}")


@command.command()
def show() -> None:
    """Print the versions that serve."""
    for package in [pin.partition("==")[0] for pin in PACKAGES] + list(REQUIRED):
        click.echo(f"{package:16} {read_version(package)}")
