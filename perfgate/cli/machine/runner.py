"""`perfgate runner`: what an administrator's machine runs around each job."""

from __future__ import annotations

import click

from perfgate.cli.lazy_group import LazyGroup

PARTS = {
    "arm": "machine.runner_arm:arm",
    "cache": "machine.runner_cache:cache",
    "clean": "machine.runner_slot:clean",
    "doctor": "machine.runner_health:doctor",
    "hook": "machine.runner_slot:hook",
    "init-host": "machine.runner_host:init_host",
    "ledger": "machine.runner_ledger:ledger",
    "lock": "machine.runner_health:lock",
    "prepare": "machine.runner_slot:prepare",
    "register": "machine.runner_slot:enlist",
    "run-once": "machine.runner_slot:run_once",
    "scrub": "machine.runner_slot:scrub",
    "status": "machine.runner_health:status",
}
"""Where each sub-command lies: units and hooks start these before and after each job, some as root."""


@click.group(name="runner", cls=LazyGroup, places=PARTS, above="runner")
def command() -> None:
    """Check, lock, clean and protect a machine that measures. Its settings are in /etc/perfgate/runner.toml."""
