"""What a command prints: text for people, or one JSON document alone on standard output, with progress on standard error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson

from perfgate.errors import InputError
from perfgate.storage.journal import write_atomically


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


def write_output(content: bytes, output: Path | None) -> None:
    """Print a document, or write it to the file of `--output`. Raise InputError where that cannot be written."""
    if output is None:
        click.echo(content, nl=False)
    else:
        write_file(content, output, "--output ")


def write_file(content: bytes, file: Path, option: str = "") -> None:
    """Write a file whole or not at all. Raise InputError, with the `option` that named the file, where it cannot be written."""
    try:
        write_atomically(file, content)
    except OSError as error:
        raise InputError(f"{option}{file}: cannot be written ({error.strerror}); choose another file") from None


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
