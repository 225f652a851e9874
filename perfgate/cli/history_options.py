"""What the commands of `perfgate history` share."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
STORE = click.option(
    "--store",
    required=True,
    envvar="PERFGATE_HISTORY",
    metavar="URL",
    help="Folder or fsspec URL, for example s3://bucket/perfgate. Default: $PERFGATE_HISTORY.",
)
COMMIT = click.option("--commit", default="", help="Commit that was measured (of a comparison: the candidate's).")
RUNNER = click.option("--runner", default="", envvar="RUNNER_NAME", help="Name of the machine. Default: $RUNNER_NAME.")


def require_extra() -> None:
    """Raise InputError, naming the extra, where its packages are missing."""
    from perfgate.history import require_extra as require  # noqa: PLC0415 - nothing of it is for --help

    require()
