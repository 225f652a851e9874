"""`perfgate list`: the results that lie below a folder."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.output import FILE, add_format_option, print_json, print_table, say
from perfgate.report.table import Table
from perfgate.results.folders import RESULTS, ResultFolder, explain_none, list_results


@click.command(name="list")
@click.argument("parent", metavar="[FOLDER]", type=FILE, default=RESULTS)
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many.")
@add_format_option
def command(parent: Path, last: int, style: str) -> int:
    """List the result folders in FOLDER (default: perfgate-results) with their outcomes, the newest first."""
    found, unread = list_results(parent)
    if unread:
        say(f"perfgate: {', '.join(map(str, unread))}: cannot be read and left out; `perfgate check` says why", err=True)
    found = found[:last]
    if style == "json":
        print_json(
            [
                {
                    "folder": one.path,
                    "begun_utc": one.record.begun_utc,
                    "scenario": one.record.scenario,
                    "state": _describe(one),
                }
                for one in found
            ]
        )
        return 0
    if not found:
        say(explain_none(parent))
        return 0
    rows = [(one.record.begun_utc, one.record.scenario, _describe(one), str(one.path)) for one in found]
    print_table(Table(header=("begun", "scenario", "state", "folder"), rows=rows, words=(0, 1, 2, 3)))
    return 0


def _describe(one: ResultFolder) -> str:
    if not one.is_ended:
        return "interrupted: continue with --resume"
    return one.outcome or "measured: `perfgate check` judges it"
