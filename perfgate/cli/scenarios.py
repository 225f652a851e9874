"""`perfgate scenarios`: what can be measured without writing a file."""

from __future__ import annotations

import click

from perfgate.scenario import list_scenarios, load_scenario


@click.command(name="scenarios")
def command() -> None:
    """List the scenarios that ship with perfgate."""
    for name in list_scenarios():
        click.echo(f"{name:28} {load_scenario(name).title}")
