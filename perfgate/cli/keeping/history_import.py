"""`perfgate history import`: numbers that a team already has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.output import add_format_option, print_result
from perfgate.errors import InputError
from perfgate.history import require_extra

if TYPE_CHECKING:
    from perfgate.history.entries import Provenance


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


@click.command(name="import")
@click.argument("paths", metavar="FILE_OR_FOLDER...", nargs=-1, required=True, type=FILE)
@STORE
@click.option("--hardware", required=True, metavar="NAME", help="The machine that all of it was measured on.")
@click.option("--scenario", default="", metavar="NAME", help="Name of the workload (default: from the numbers themselves).")
@click.option("--at", metavar="TIME", help="When it was measured (default: the time that the file was last changed).")
@COMMIT
@click.option("--runner", default="", help="Name of the machine.")
@click.option(
    "--pattern", metavar="REGEX", help="Named groups date, commit, runner, release, scenario, searched in each file's path."
)
@click.option(
    "--metric", "renamed", multiple=True, metavar="THEIRS=OURS", help="A foreign number is one of perfgate's metrics."
)
@add_format_option
def import_past(*, paths: tuple[Path, ...], store: str, style: str, **told: Any) -> int:
    """Start with your past: data.js of github-action-benchmark, and bench_serving's JSONL, printed tables and matrix logs.

    Nothing of it is judged. What is imported twice counts once.
    """
    require_extra()
    from perfgate.history.data_js import is_data_js, read_data_js  # noqa: PLC0415
    from perfgate.history.imports import Past, enter_past, read_moment  # noqa: PLC0415
    from perfgate.history.loose_runs import read_past_runs  # noqa: PLC0415
    from perfgate.history.store import Store  # noqa: PLC0415

    past = Past(
        hardware=told["hardware"],
        scenario=told["scenario"],
        at=read_moment(told["at"]) if told["at"] else None,
        pattern=_compile(told["pattern"]) if told["pattern"] else None,
        provenance=_tell(told["commit"], told["runner"]),
        metrics=dict(_split(pair) for pair in told["renamed"]),
    )
    pages = [path for path in paths if is_data_js(path)]
    found = read_past_runs([path for path in paths if path not in pages], past)
    runs = [*found.runs, *(run for page in pages for run in read_data_js(page, past))]
    for line in found.skipped:
        click.echo(f"perfgate: left out: {line}", err=True)
    if not runs:
        raise InputError(f"{', '.join(map(str, paths))}: no run in it; give data.js, JSONL, printed results or a matrix log")
    added = Store(store).append([enter_past(run) for run in runs])
    cold = sum(run.is_cold for run in runs)
    print_result(
        style,
        {
            "read": len(runs),
            "added": len(added),
            "already_there": len(runs) - len(added),
            "cold": cold,
            "left_out": found.skipped,
        },
        f"{len(runs)} runs read, {len(added)} added, {len(runs) - len(added)} already there; {cold} of them cold",
    )
    return 0


def _tell(commit: str, runner: str) -> Provenance:
    from perfgate.history.entries import Provenance  # noqa: PLC0415

    return Provenance(commit=commit, runner=runner)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InputError(f"--pattern {pattern!r}: is no regular expression ({error})") from None


def _split(pair: str) -> tuple[str, str]:
    theirs, sign, ours = pair.rpartition("=")
    if not sign or not theirs or not ours:
        raise InputError(f"--metric {pair!r}: give THEIRS=OURS, for example 'P99 ITL=p99_itl_ms'")
    return theirs, ours
