"""Tables for people: drawn on a terminal, plain columns in a pipe, or markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from perfgate.report.escape import markdown, plain

GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A header and rows of equal length; the columns of `words` hold names and stand to the left, the others hold figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)


def lay_out(table: Table) -> str:
    """Align columns with spaces: names to the left, figures to the right."""
    lines = [[plain(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    aligned = (
        GAP.join(
            cell.ljust(width) if index in table.words else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def lay_out_markdown(table: Table) -> str:
    """Write a GitHub table; every cell is escaped."""
    rule = ["---" if index in table.words else "---:" for index in range(len(table.header))]
    rows = [[markdown(cell) for cell in table.header], rule, *([markdown(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def print_table(table: Table) -> None:
    """Draw the table if standard output is a terminal, else print plain columns."""
    print(choose_layout()(table))


def choose_layout() -> Callable[[Table], str]:
    """How tables are laid out on standard output: drawn for a person, plain columns in a pipe or a log."""
    return draw if sys.stdout.isatty() else lay_out


def draw(table: Table) -> str:
    """Draw the table with lines; in plain columns where the terminal is too narrow for that, so that no cell is cut."""
    drawn = Drawn(header_style="bold")
    for index, name in enumerate(table.header):
        drawn.add_column(Text(plain(name)), justify="left" if index in table.words else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    console = Console(force_terminal=True)
    if console.measure(drawn, options=console.options.update(max_width=10_000)).maximum > console.width:
        return lay_out(table)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n")
