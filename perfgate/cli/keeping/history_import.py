"""`perfgate history import`: numbers that a team already has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.output import FILE, add_format_option, print_result, say
from perfgate.errors import InputError
from perfgate.history import require_extra
from perfgate.storage.rounding import format_count
from perfgate.storage.state import find_machine_history

STORE = click.option(
    "--store",
    default=lambda: str(find_machine_history()),
    envvar="PERFGATE_HISTORY",
    metavar="URL",
    help="Folder or fsspec URL, for example s3://bucket/perfgate. Default: $PERFGATE_HISTORY, else a folder of this machine.",
)
COMMIT = click.option("--commit", default="", help="Commit that was measured (of a comparison: the candidate's).")
RUNNER = click.option("--runner", default="", envvar="RUNNER_NAME", help="Name of the machine. Default: $RUNNER_NAME.")


@click.command(name="import")
@click.argument("paths", metavar="FILE_OR_FOLDER...", nargs=-1, required=True, type=FILE)
@STORE
@click.option("--hardware", required=True, metavar="NAME", help="The machine that measured all of these results.")
@click.option("--scenario", default="", metavar="NAME", help="Name of the workload (default: derived from the results).")
@click.option("--at", metavar="TIME", help="When it was measured (default: when the file last changed; now for -).")
@COMMIT
@click.option("--runner", default="", help="Name of the machine.")
@click.option(
    "--pattern", metavar="REGEX", help="Named groups date, commit, runner, release, scenario, searched in each file's path."
)
@click.option("--metric", "renamed", multiple=True, metavar="THEIRS=OURS", help="Map a foreign metric to one of perfgate's.")
@add_format_option
def import_past(*, paths: tuple[Path, ...], store: str, style: str, **told: Any) -> int:
    """Import earlier results: data.js of github-action-benchmark, and bench_serving's JSONL, printed tables and matrix logs.

    Imported results are not judged. A result that is imported twice counts once.
    """
    require_extra()
    from perfgate.cli.keeping.history_work import read_past, store_past  # noqa: PLC0415 - pyarrow and duckdb are an extra

    runs, skipped = read_past(paths, **told)
    for line in skipped:
        say(f"perfgate: left out: {line}", err=True)
    if not runs:
        raise InputError(f"{', '.join(map(str, paths))}: no run in it; give data.js, JSONL, printed results or a matrix log")
    added = store_past(store, runs)
    cold = [run.cold for run in runs if run.cold]
    print_result(
        style,
        {
            "read": len(runs),
            "added": added,
            "already_there": len(runs) - added,
            "cold": len(cold),
            "cold_runs": [
                {"source": one.run.source, "metric": one.metric, "value": one.value, "level": one.level} for one in cold
            ],
            "left_out": skipped,
        },
        f"{format_count(len(runs), 'run')} read, {added} added, {len(runs) - added} already there; {len(cold)} of them cold",
        *(f"cold: {one.run.source}: {one.figures}" for one in cold),
    )
    return 0
