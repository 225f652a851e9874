"""`perfgate scenarios`: what can be measured without writing a file, and how to begin one of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import click

from perfgate.cli.completion import complete_scenario
from perfgate.cli.options import add_scenario_argument, read_scenario
from perfgate.cli.output import add_format_option, print_json, say
from perfgate.errors import InputError
from perfgate.scenario.catalog import list_scenarios, load_scenario
from perfgate.scenario.schema import parse_scenario
from perfgate.storage.places import write_file
from perfgate.storage.stream import STREAM

_NAME = re.compile(r"^name\s*=.*$", re.MULTILINE)


@click.group(name="scenarios", invoke_without_command=True)
@add_format_option
@click.pass_context
def command(context: click.Context, style: str) -> None:
    """List the shipped scenarios, show the text of one, or start your own.

    A scenario is a TOML file: model, server, load, blocks and gates. Every command that measures takes a name or the path of a
    file; docs/reference/scenarios.md explains each field.
    """
    if context.invoked_subcommand is not None:
        return
    titles = {name: load_scenario(name).title for name in list_scenarios()}
    if style == "json":
        print_json([{"name": name, "title": title} for name, title in titles.items()])
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        say(f"{name:{width}}  {title}")


@command.command()
@add_scenario_argument()
def show(scenario: str) -> int:
    """Print the whole text of SCENARIO: a name, a file, or - for standard input."""
    click.echo(read_scenario(scenario)[0], nl=False)
    return 0


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--like", default="cpu-moe", show_default=True, shell_complete=complete_scenario, help="Scenario to copy.")
def new(file: Path, like: str) -> int:
    """Write FILE, your own scenario, as a copy of another: a .toml file. An existing file is never overwritten."""
    if file != STREAM and file.suffix != ".toml":
        file = file.with_name(f"{file.name}.toml")
    if file.exists():
        raise InputError(f"{file}: exists; give another name, or edit it")
    text, _ = read_scenario(like)
    name = re.sub(r"[^a-z0-9-]+", "-", file.stem.lower()).strip("-") or "mine"
    if name in list_scenarios():
        raise InputError(
            f"{file}: {name} is a shipped scenario, and baselines go by names; give another, such as my-{name}.toml"
        )
    own = _NAME.sub(f'name = "{name}"', text, count=1)
    parse_scenario(own, str(file))
    write_file(own.encode(), file)
    if file != STREAM:
        say(f"{file}: a copy of {like} named {name}; edit it, then measure with `perfgate gate {file}`", err=True)
    return 0
