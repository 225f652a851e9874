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
from perfgate.errors import InputError
from perfgate.storage.journal import write_atomically
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
# Lines to paste, and lines of a drawn table: a fold would break them.
_WHOLE = re.compile("^\\s*(perfgate|git|python|make) |^\\s*[\u2500-\u257f]")
_LABEL = re.compile(r"^(\[\d+\] |[a-z][a-z ]{0,8}  +)")


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
    if is_text and output is None and sys.stdout.isatty():
        click.echo(fit_screen(content.decode(), shutil.get_terminal_size().columns, has_colour="NO_COLOR" not in os.environ))
        return
    write_file(content, output or STREAM, "--output ")


def fit_screen(text: str, width: int, *, has_colour: bool) -> str:
    """Fold the lines of `text` to `width` columns, and colour the outcomes that it names; the last line break is left out."""
    folded = "\n".join(folded for line in text.rstrip("\n").split("\n") for folded in _fold(line, width))
    if not has_colour:
        return folded
    return _OUTCOME.sub(lambda found: click.style(found[1], fg=COLOURS[Outcome(found[1])], bold=True), folded)


def _fold(line: str, width: int) -> Iterator[str]:
    if len(line) <= width or _WHOLE.match(line):
        yield line
        return
    label = _LABEL.match(line)
    indent = " " * (len(label[1]) if label else 0)
    yield from textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def write_file(content: bytes, file: Path, option: str = "") -> None:
    """Write a file whole or not at all, or standard output for `-`.

    Raise InputError, with the `option` that named the file, where it cannot be written.
    """
    try:
        write_atomically(file, content)
    except BrokenPipeError:
        # The reader has seen enough; click ends the program.
        raise
    except OSError as error:
        raise InputError(f"{option}{file}: cannot be written ({error.strerror}); choose another file") from None


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
        click.echo(line)


def print_json(content: Any) -> None:
    """Print one document with sorted keys; paths become text, and what is no number becomes null."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    click.echo(orjson.dumps(content, default=str, option=options), nl=False)
