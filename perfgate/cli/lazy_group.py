"""A group of commands whose modules are imported when they are called, so that each start pays for its own command alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from perfgate.cli.examples import add_examples


class LazyGroup(click.Group):
    """A click group that imports a sub-command's module when it is called.

    `places` says where each command lies, as `machine.runner_arm:arm` below this package; `above` is what is typed before its
    name, for its examples.
    """

    def __init__(self, *arguments: Any, places: Mapping[str, str], above: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.places, self.above = places, above

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every sub-command, sorted."""
        del ctx
        return sorted(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name` and give its help its examples; None for a name that is no command."""
        del ctx
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].partition(":")
        command = getattr(import_module(f"perfgate.cli.{module}"), name)
        return add_examples(command, f"{self.above} {cmd_name}".lstrip()) if isinstance(command, click.Command) else None
