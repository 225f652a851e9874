"""`perfgate scenarios`: what can be measured without writing a file."""

from __future__ import annotations

import click

from perfgate.cli.output import add_format_option, print_json
from perfgate.scenario.catalog import list_scenarios, load_scenario


@click.command(name="scenarios")
@add_format_option
def command(style: str) -> None:
    """List the scenarios that ship with perfgate."""
    titles = {name: load_scenario(name).title for name in list_scenarios()}
    if style == "json":
        print_json([{"name": name, "title": title} for name, title in titles.items()])
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        click.echo(f"{name:{width}} {title}")
