"""`perfgate plan`: the scenarios that a change is to be measured under, why, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from perfgate.cli.given import Number
from perfgate.cli.output import add_format_option, print_result
from perfgate.errors import InputError
from perfgate.report.table import Table, choose_layout
from perfgate.scenario.selection import Selection, SelectionRequest, read_table, select_scenarios
from perfgate.storage.rounding import format_count
from perfgate.storage.stream import STREAM, read_text


@click.command(name="plan")
@click.option(
    "--changed",
    multiple=True,
    metavar="PATH",
    help="A changed path of the engine; repeatable; - reads a list from standard input.",
)
@click.option(
    "--minutes",
    type=Number(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="By the clock, of one machine.",
)
@click.option(
    "--model", default="gpt-oss-20b-shape-mxfp4", show_default=True, metavar="NAME", help="A model that ships, or cpu."
)
@click.option("--add", "added", multiple=True, metavar="LOAD", help="Measure this load first; repeatable.")
@click.option("--skip", "skipped", multiple=True, metavar="LOAD", help="Leave this load out; repeatable.")
@click.option("--table", type=click.Path(path_type=Path, dir_okay=False), help="Rules of your own (default: those that ship).")
@add_format_option
def command(*, changed: tuple[str, ...], table: Path | None, style: str, **options: Any) -> int:
    """Choose scenarios for a change by the paths that it touches and a limit of minutes; print their commands.

    mixed-c16 is always chosen, for a model over two GPUs closed-c16. Each scenario that is left out is listed with the reason.
    The minutes assume warm compile caches.
    """
    paths = [path for given in changed for path in (_read_stream() if Path(given) == STREAM else (given,))]
    asked = SelectionRequest(changed=tuple(dict.fromkeys(paths)), **options)
    selection = select_scenarios(read_table(table), asked)
    print_result(style, {**asdict(selection), "total_minutes": selection.total_minutes}, *_tell(selection))
    return 0


def _read_stream() -> tuple[str, ...]:
    """Read a path a line. Raise InputError where they are no text: git quotes such a name, other tools do not."""
    try:
        text = read_text(STREAM)
    except UnicodeDecodeError as error:
        raise InputError(
            f"--changed {STREAM}: byte {error.start} is no UTF-8; give the paths as `git diff` quotes them"
        ) from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _tell(selection: Selection) -> Iterator[str]:
    rows = [
        [one.scenario, str(one.blocks), f"{'~' if one.is_reckoned else ''}{one.minutes:.1f}", one.reason]
        for one in selection.selected
    ]
    yield choose_layout()(Table(header=("measured", "blocks", "minutes", "why"), rows=rows, words=(0, 3)))
    several = selection.gpu_minutes > selection.total_minutes
    held = f", {selection.gpu_minutes:.1f} GPU-minutes" if several else ""
    yield f"{selection.total_minutes:.1f} of {selection.minutes:g} minutes{held}; ~ is estimated, not measured"
    yield from (f"not measured: {left.scenario}: {left.reason}" for left in selection.unselected if left.is_wanted)
    if others := [left.scenario for left in selection.unselected if not left.is_wanted]:
        yield f"no touched path asks for {', '.join(others)}"
    if selection.unknown:
        yield f"no rule for {format_count(len(selection.unknown), 'path')}: {', '.join(selection.unknown[:3])}"
    count = len(selection.selected)
    for one in selection.selected:
        yield f"perfgate gate {one.scenario} --blocks {one.blocks} --scenarios-in-pr {count}"
    yield from selection.also
