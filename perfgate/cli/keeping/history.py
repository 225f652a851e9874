"""`perfgate history`: results of every day in one store, and what they say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.output import FILE, add_format_option, print_result, print_table, say, write_output
from perfgate.errors import InputError
from perfgate.history import require_extra
from perfgate.history.dashboard import format_history, render_dashboard
from perfgate.history.listing import describe_events, describe_ledger, rank_series, tabulate_series, tabulate_spending
from perfgate.history.trends import History
from perfgate.storage.places import write_file
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


@click.group(name="history")
def command() -> None:
    """Store results over time; show trends, changes, false alarms and costs."""


@command.command(name="import")
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


@command.command()
@click.argument("folders", metavar="RESULT_DIR...", nargs=-1, required=True, type=FILE)
@STORE
@COMMIT
@click.option("--base-commit", default="", help="Commit of the base arm; an A/A session has one commit.")
@RUNNER
@click.option(
    "--release",
    default="",
    metavar="NAME",
    help="Name of the release that was measured; later slow drift is measured against it.",
)
@click.option("--repository", default="", metavar="URL", help="Address for links, such as https://github.com/OWNER/NAME.")
@click.option("--pull-request", default="", metavar="NUMBER", help="The pull request that was measured.")
@click.option("--run", default="", envvar="GITHUB_RUN_ID", metavar="NUMBER", help="The workflow run that measured.")
@click.option("--baselines", multiple=True, type=FILE, metavar="DIR", help="Folder of baselines; repeatable.")
@add_format_option
def append(*, folders: tuple[Path, ...], store: str, baselines: tuple[Path, ...], style: str, **told: str) -> int:
    """Add result folders with their verdicts. A folder that is given twice counts once."""
    require_extra()
    from perfgate.cli.keeping.history_work import append_folders  # noqa: PLC0415 - pyarrow and duckdb are an extra

    sessions = append_folders(folders, store, baselines, **told)
    print_result(style, {"sessions": sessions}, *map(_describe_appended, sessions))
    return 0


def _describe_appended(one: dict[str, Any]) -> str:
    what = f"{one['windows']} windows, {one['outcome']}" if one["added"] else "already there"
    return f"{one['folder']}: session {one['session']}, {what}"


@command.command()
@STORE
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Only this scenario; repeatable.")
@click.option("--hardware", multiple=True, metavar="NAME", help="Only this hardware; repeatable.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Only this metric; repeatable. Default: the headline metrics."
)
@click.option("--since", metavar="DATE", help="Only sessions that began on or after this day.")
@click.option("--last", type=click.IntRange(min=0), help="Newest sessions of each series; 0 for all.  [default: 400]")
@add_format_option
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page: one file that works offline.")
@click.option("--output", type=FILE, metavar="FILE", help="Write JSON to FILE instead of stdout.")
def show(*, store: str, style: str, html: Path | None, output: Path | None, **asked: Any) -> int:
    """Print trends: changes of level, slow drift, differences between runners, false alarms and machine time."""
    require_extra()
    from perfgate.cli.keeping.history_work import ask  # noqa: PLC0415 - as above

    if output is not None and style == "text":
        raise InputError("--output: is for --format json; a table is printed, --html FILE writes a page")
    history = ask(store, **asked)
    if html is not None:
        write_file(render_dashboard(history).encode(), html, "--html")
    if style == "json":
        write_output(format_history(history), output)
    else:
        _print_history(history)
    return 0


def _print_history(history: History) -> None:
    print_table(tabulate_series(sorted(history.series, key=rank_series)))
    for series in history.series:
        if events := list(describe_events(series)):
            say(f"\n{series.subject.scenario} on {series.subject.hardware}, {series.subject.title}:")
            for event in events:
                say(f"  {event}")
    say()
    if history.spending:
        print_table(tabulate_spending(history))
        say()
    for line in describe_ledger(history.ledger):
        say(line)


@command.command()
@click.argument("session")
@STORE
@click.option("--reason", required=True, help="Why the verdict was overruled.")
@click.option("--by", "person", required=True, metavar="NAME", help="Who overruled it.")
@click.option(
    "--accepted", is_flag=True, help="The loss is real and accepted. Without this option the verdict counts as a false alarm."
)
@add_format_option
def override(*, session: str, store: str, reason: str, person: str, accepted: bool, style: str) -> int:
    """Record that a person overruled a verdict. SESSION may be shortened to its first digits."""
    require_extra()
    from perfgate.cli.keeping.history_work import overrule  # noqa: PLC0415 - as above

    ruling = "accepted" if accepted else "false alarm"
    found = overrule(store, session, person=person, ruling=ruling, reason=reason)
    said = {"session": found, "ruling": ruling, "reason": reason, "person": person}
    print_result(style, said, f"session {found}: {ruling}, {reason}")
    return 0


@command.command()
@STORE
@add_format_option
def compact(*, store: str, style: str) -> int:
    """Merge the many small files of each month into one. Run it occasionally, by one process at a time."""
    require_extra()
    from perfgate.history.store import Store  # noqa: PLC0415 - as above

    before, after = Store(store).compact()
    print_result(style, {"store": store, "files_before": before, "files": after}, f"{store}: {before} files, now {after}")
    return 0
