"""Tables for people: drawn on a terminal, plain columns in a pipe, or markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.report.escape import markdown, plain

GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A header and rows of equal length; the first column holds names, the others figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def lay_out(table: Table) -> str:
    """Align columns with spaces: names to the left, figures to the right."""
    lines = [[plain(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    aligned = (
        GAP.join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def lay_out_markdown(table: Table) -> str:
    """Write a GitHub table; every cell is escaped."""
    rule = ["---", *("---:" for _ in table.header[1:])]
    rows = [[markdown(cell) for cell in table.header], rule, *([markdown(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def print_table(table: Table) -> None:
    """Draw the table if standard output is a terminal, else print plain columns."""
    if not sys.stdout.isatty():
        print(lay_out(table))
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.table import Table as Drawn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Drawn(header_style="bold")
    for index, name in enumerate(table.header):
        drawn.add_column(Text(plain(name)), justify="right" if index else "left")
    for row in table.rows:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    Console().print(drawn)
