"""The pages that a comment's link leads to: one a scenario, beside the result folder that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from perfgate.cli.ci.handoff import unpack_all
from perfgate.cli.ci.judging import Court
from perfgate.cli.reading.html_report import write_html
from perfgate.errors import InputError
from perfgate.github.runs import Finding

_OPTIONS = (
    click.option(
        "--pages",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Write there a page and a result folder for each scenario, DIR/LABEL/SCENARIO, and say nothing.",
    ),
    click.option(
        "--link", metavar="URL", default="", help="Where those pages were kept, for the comment to name (default: the run)."
    ),
)


def add_page_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that write the pages, and that say where they were kept."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def write_pages(findings: Iterable[Finding], court: Court, out: Path) -> None:
    """Open what each machine handed over and write its pages. What cannot be shown is left out; the comment says why."""
    for finding in findings:
        place = out / finding.hardware
        for handoff in finding.handoffs:
            try:
                (folder,) = unpack_all((handoff,), court.scenarios, place, scenarios_in_pr=court.scenarios_in_pr)
                write_html(folder, place / f"{handoff.scenario}.html", court.baselines, ())
            except InputError as error:
                click.echo(f"{finding.hardware}: no page: {error}")
                continue
            click.echo(f"{folder}.html")
