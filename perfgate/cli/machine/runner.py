"""`perfgate runner`: what an administrator's machine runs around each job."""

from __future__ import annotations

from importlib import import_module

import click

from perfgate.cli.examples import add_examples

PARTS = {
    "arm": "runner_slot:arm",
    "cache": "runner_cache:cache",
    "clean": "runner_slot:clean",
    "doctor": "runner_health:doctor",
    "hook": "runner_slot:hook",
    "init-host": "runner_host:init_host",
    "ledger": "runner_ledger:ledger",
    "lock": "runner_health:lock",
    "prepare": "runner_slot:prepare",
    "register": "runner_slot:enlist",
    "run-once": "runner_slot:run_once",
    "scrub": "runner_slot:scrub",
    "status": "runner_health:status",
}
"""The module of each sub-command, and its name there."""


class RunnerGroup(click.Group):
    """Imports a sub-command's module when it is called: units and hooks start these before and after each job, some as root."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every sub-command, sorted."""
        del ctx
        return sorted(PARTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name`; None for a name that is no command."""
        del ctx
        if cmd_name not in PARTS:
            return None
        module, _, name = PARTS[cmd_name].partition(":")
        part = getattr(import_module(f"perfgate.cli.machine.{module}"), name)
        return add_examples(part, f"runner {cmd_name}") if isinstance(part, click.Command) else None


@click.group(name="runner", cls=RunnerGroup)
def command() -> None:
    """Keep a machine fit, locked, closed to strangers and clean. Its settings are in /etc/perfgate/runner.toml."""
