"""What a command prints: text for people, or one JSON document alone on standard output, with progress on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import orjson


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
