"""`perfgate runner ledger`: who ran what on this machine for how many GPU-minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from perfgate.cli.given import Number
from perfgate.cli.machine.runner_slot import build_app
from perfgate.cli.output import add_format_option, print_result
from perfgate.errors import GitHubError, RunnerError
from perfgate.github.registration import connect_app
from perfgate.runner.fleet.ledger import LEDGER, NOTE, Note, Span, append, read_entries, read_note, settle
from perfgate.runner.fleet.limits import DAY_S
from perfgate.runner.settings import Runner, load_runner
from perfgate.runner.slot import find_name_file, find_registered, find_slot
from perfgate.storage.journal import write_utc


@click.group()
def ledger() -> None:
    """Count GPU-minutes, for `[limits]` of the settings."""


@ledger.command()
@click.option("--slot", "name", required=True, metavar="NAME", help="Slot (as in the settings) whose job has ended.")
@add_format_option
def add(name: str, style: str) -> int:
    """Add the slot's last job as GitHub reports it; needs root. Adds nothing if no job ran."""
    runner = load_runner()
    gpus = len(find_slot(runner, name).gpu)
    home = runner.folder / name
    try:
        noted_s = os.lstat(home / NOTE).st_ctime
    except (FileNotFoundError, NotADirectoryError):
        print_result(style, {"entry": None}, f"slot {name}: no job was admitted")
        return 0
    registered = find_registered(runner, name)
    now_s, registered_s = time.time(), find_name_file(runner, name).stat().st_mtime
    span = Span(registered_s=registered_s, noted_s=min(max(noted_s, registered_s), now_s), ended_s=now_s, gpus=gpus)
    note, jobs = _read(runner, name)
    entry = settle(name, note, jobs, registered, span)
    append(runner.state / LEDGER, entry)
    print_result(style, {"entry": entry}, f"slot {name}: {entry.gpu_minutes} GPU-minutes of {entry.user}, {entry.repository}")
    return 0


def _read(runner: Runner, name: str) -> tuple[Note | None, Sequence[Mapping[str, Any]] | None]:
    """The note, None for one that is none; and the jobs of its run, None where GitHub does not answer."""
    try:
        note = read_note(runner.folder / name)
    except RunnerError:
        return None, ()
    if note is None or note.repository not in runner.repositories:
        return None, ()
    path = f"/repos/{note.repository}/actions/runs/{note.run_id}/attempts/{note.run_attempt}/jobs"
    try:
        return note, tuple(connect_app(build_app()).list_all(path))
    except GitHubError:
        return note, None


@ledger.command()
@click.option("--days", type=Number(min=0, min_open=True), default=1.0, show_default=True, help="How far back.")
@add_format_option
def show(days: float, style: str) -> int:
    """Show the jobs of this machine, the newest last, and what each user and repository used."""
    entries = read_entries(load_runner().state / LEDGER, time.time() - days * DAY_S)
    sums: dict[str, float] = {}
    for entry in entries:
        for whom in (entry.user, entry.repository):
            sums[whom] = round(sums.get(whom, 0.0) + entry.gpu_minutes, 2)
    lines = [
        f"{write_utc(datetime.fromtimestamp(entry.began_s, UTC))} {entry.slot} {entry.gpu_minutes:8.2f} min "
        f"{entry.event} {entry.user} {entry.repository} run {entry.run_id}{'' if entry.is_verified else ' (unverified)'}"
        for entry in entries
    ]
    lines += [f"{minutes:.2f} min in {days:g} days: {whom}" for whom, minutes in sorted(sums.items(), key=lambda one: -one[1])]
    print_result(style, {"days": days, "entries": entries, "gpu_minutes": sums}, *lines)
    return 0
