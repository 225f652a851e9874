"""`perfgate schema`: what a program may rely on in `verdict.json`."""

from __future__ import annotations

from importlib.resources import files

import click


@click.command(name="schema")
def command() -> int:
    """Print the JSON schema of verdict.json, which `perfgate check --format json` prints too."""
    click.echo(files("perfgate.storage").joinpath("verdict.schema.json").read_text(encoding="utf-8"), nl=False)
    return 0
