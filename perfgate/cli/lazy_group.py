"""A group of commands whose modules are imported when they are called, so that each start pays for its own command alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from perfgate.cli.examples import add_examples
from perfgate.cli.given import refuse_empty


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
        """Import the module of `cmd_name`; None for a name that is no command.

        It refuses empty values, and its help has examples.
        """
        del ctx
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].partition(":")
        command = getattr(import_module(f"perfgate.cli.{module}"), name)
        if not isinstance(command, click.Command):
            return None
        return add_examples(refuse_empty(command), f"{self.above} {cmd_name}".lstrip())
