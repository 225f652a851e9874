"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from perfgate.cli import SECTIONS, program

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


def render() -> str:
    """The page: each section, each command, what its help says at 100 columns."""
    return "\n".join(_write()) + "\n"


def _write() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "Made from `--help`; `PERFGATE_REFRESH_GOLDEN=1 python -m pytest tests/documents/test_reference.py` writes it anew."
    yield (
        "Exit codes: 0 pass or improved, 1 regression, 2 bad input, 3 inconclusive or invalid, 70 a defect, 130 interrupted, "
        "141 unread."
    )
    context = click.Context(program, info_name="perfgate", **program.context_settings)
    for title, section in SECTIONS.items():
        yield from ("", f"## {title}")
        for name in section:
            command = program.get_command(context, name)
            if command is not None:
                yield from _write_command(command, context, name)


def _write_command(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    # Defaults that are paths of the machine are not what a reader has.
    # click keeps the help option of the first context that asked for one; a user has always come by the program.
    command._help_option = None
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    yield from ("", f"### {context.command_path}", "", "```text", command.get_help(context), "```")
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield from _write_command(found, context, inner)
