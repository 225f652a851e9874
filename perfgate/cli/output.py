"""What a command prints: text for people, or one JSON document alone on standard output, with progress on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from perfgate.core import Outcome
from perfgate.report.table import Table, choose_layout
from perfgate.storage.places import write_file
from perfgate.storage.stream import STREAM

FILE = click.Path(path_type=Path)
COLOURS = {
    Outcome.IMPROVED: "green",
    Outcome.PASS: "green",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.REGRESSION: "red",
    Outcome.INVALID: "magenta",
}
_OUTCOME = re.compile(rf"\b({'|'.join(COLOURS)})\b")
# What a workflow's runner reads: it must stay one line, in its own words.
_FOR_RUNNER = "::"
# Lines of a drawn table, and commands to paste with the comment behind them: a fold would break these.
_DRAWN = re.compile("^\\s*[\u2500-\u257f]")
_COMMAND = re.compile(r"^(?P<indent> *)(?P<line>(?:perfgate|git|python|make) .*?)(?: +(?P<comment># .*))?$")
# What later lines stand below: an indent, then a bullet, the number of a footnote or a name in a column of its own.
_LABEL = re.compile(r"^ *(?:- |\[\d+\] |\S+(?: \S+){0,2} {2,})?")


def add_format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--format text|json`; it arrives as `style`."""
    return click.option(
        "--format",
        "style",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text for people, or one JSON document.",
    )(command)


def write_output(content: bytes, output: Path | None, *, is_text: bool = False) -> None:
    """Print a document, or write it to the file of `--output`. Raise InputError where that cannot be written.

    A text for people is folded to the terminal, and its outcomes are coloured there.
    """
    if is_text and output is None:
        say(content.decode().removesuffix("\n"))
        return
    write_file(content, output or STREAM, "--output")


def say(text: object = "", *, err: bool = False) -> None:
    """Print text for people, on standard error with `err`; a terminal gets it folded and with its outcomes coloured."""
    shown = str(text)
    if (sys.stderr if err else sys.stdout).isatty():
        shown = fit_screen(shown, shutil.get_terminal_size().columns, has_colour="NO_COLOR" not in os.environ)
    click.echo(shown, err=err)


def print_table(table: Table) -> None:
    """Draw the table if standard output is a terminal, else print plain columns."""
    say(choose_layout()(table))


def fit_screen(text: str, width: int, *, has_colour: bool) -> str:
    """Fold the lines of `text` to `width` columns, and colour the outcomes that it names. No word and no command is cut."""
    folded = (folded for line in text.split("\n") for folded in _fold(line, width))
    return "\n".join(map(_colour, folded) if has_colour else folded)


def _colour(line: str) -> str:
    if line.startswith(_FOR_RUNNER):
        return line
    return _OUTCOME.sub(lambda found: click.style(found[1], fg=COLOURS[Outcome(found[1])], bold=True), line)


def _fold(line: str, width: int) -> Iterator[str]:
    command = _COMMAND.match(line)
    if len(line) <= width or line.startswith(_FOR_RUNNER) or _DRAWN.match(line):
        yield line
    elif command:
        yield command["indent"] + command["line"]
        comment = command["comment"] or ""
        yield from _wrap(comment.removeprefix("# "), width, f"{command['indent']}  # ", f"{command['indent']}  # ")
    else:
        label = _LABEL.match(line)
        reach = label.end() if label else 0
        text = line.lstrip()
        yield from _wrap(text, width, line[: -len(text)], " " * (reach if reach <= width // 2 else 4))


def _wrap(text: str, width: int, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def open_page(file: Path) -> None:
    """Show a page in the reader's browser; say so where none can be started."""
    if not webbrowser.open(file.resolve().as_uri()):
        click.echo(f"perfgate: no browser can be started here; open {file} yourself", err=True)


def print_result(style: str, content: Any, *lines: object) -> None:
    """Print what a command made: its lines for people, or `content` as the one document."""
    if style == "json":
        print_json(content)
        return
    for line in lines:
        say(line)


def print_json(content: Any) -> None:
    """Print one document with sorted keys; paths become text, and what is no number becomes null."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    click.echo(orjson.dumps(content, default=str, option=options), nl=False)
