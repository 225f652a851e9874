"""Tables for people: drawn on a terminal, plain columns in a pipe, or markdown."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from perfgate.report.escape import markdown, plain

GAP = "  "
NO_BREAK = "\u00a0"


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


def join_rows(table: Table) -> str:
    """Write a row a line, as wide as its own cells, so that a row differs only where its cells do."""
    return "\n".join(GAP.join(map(plain, row)) for row in (table.header, *table.rows))


def lay_out_markdown(table: Table) -> str:
    """Write a GitHub table; every cell is escaped."""
    rule = ["---" if index in table.words else "---:" for index in range(len(table.header))]
    rows = [[markdown(cell) for cell in table.header], rule, *([markdown(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def choose_layout() -> Callable[[Table], str]:
    """How tables are laid out on standard output: drawn for a person, plain columns in a pipe or a log."""
    return draw if sys.stdout.isatty() else lay_out


def stack(table: Table, width: int) -> str:
    """Write each row as a paragraph for a narrow terminal: its first cell, then each other cell behind its column's name."""
    return "\n".join(line for row in table.rows for line in _write_row(table.header, row, width))


def _write_row(header: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    yield plain(row[0])
    cells = (f"{plain(name)} {plain(cell)}".lstrip() for name, cell in zip(header[1:], row[1:], strict=True) if cell)
    # A cell is kept whole where it fits into a line.
    glued = "   ".join(cell.replace(" ", NO_BREAK) for cell in cells)
    for line in textwrap.wrap(glued, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False):
        yield line.replace(NO_BREAK, " ")


def draw(table: Table) -> str:
    """Draw the table with lines; a row as a paragraph where the terminal is too narrow for that, so that no cell is cut."""
    drawn = Drawn(header_style="bold")
    for index, name in enumerate(table.header):
        drawn.add_column(Text(plain(name)), justify="left" if index in table.words else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    # The same width as that of the lines around it: rich takes COLUMNS=0 as it stands.
    console = Console(force_terminal=True, width=shutil.get_terminal_size().columns)
    if console.measure(drawn, options=console.options.update(max_width=10_000)).maximum > console.width:
        return stack(table, console.width)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n")
