"""`perfgate history`: results of every day in one store, and what they say together."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.check import write
from perfgate.errors import InputError

if TYPE_CHECKING:
    from perfgate.history.entries import Entry, Provenance
    from perfgate.history.query import Question
    from perfgate.history.trends import History

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
MAX_DAYS = 36500


@click.group(name="history")
def command() -> None:
    """Append results to a store that grows, and ask it for trends, changes, false alarms and costs."""


@command.command()
@click.argument("folders", metavar="RESULT_DIR...", nargs=-1, required=True, type=FILE)
@STORE
@COMMIT
@click.option("--base-commit", default="", help="Commit of the base arm; an A/A session has one commit.")
@RUNNER
@click.option("--release", default="", metavar="NAME", help="These sessions are a release's: creep is measured against them.")
@click.option("--baselines", multiple=True, type=FILE, metavar="DIR", help="Folder of stored noise bands; repeatable.")
def append(*, folders: tuple[Path, ...], store: str, baselines: tuple[Path, ...], **told: str) -> int:
    """Add result folders with their verdicts. A folder that is given twice counts once."""
    _require_extra()
    from perfgate.history.entries import Provenance  # noqa: PLC0415 - pyarrow and duckdb are an extra
    from perfgate.history.store import Store  # noqa: PLC0415

    provenance = Provenance(**told)
    # All are read before the first is written: a broken folder leaves the store as it was.
    entries = [_read_entry(folder, baselines, provenance) for folder in folders]
    added = {entry.session for entry in Store(store).append(entries)}
    for folder, entry in zip(folders, entries, strict=True):
        what = f"{len(entry.windows)} windows, {entry.verdict['outcome']}" if entry.session in added else "already there"
        click.echo(f"{folder}: session {entry.session}, {what}")
    return 0


def _read_entry(folder: Path, baselines: tuple[Path, ...], provenance: Provenance) -> Entry:
    from perfgate.baseline_choice import choose_baseline  # noqa: PLC0415
    from perfgate.check import judge  # noqa: PLC0415
    from perfgate.evidence.records import read_record  # noqa: PLC0415
    from perfgate.evidence.results import load_results  # noqa: PLC0415
    from perfgate.history.entries import Judged, enter_session  # noqa: PLC0415
    from perfgate.policy import fix_policy  # noqa: PLC0415

    scenario, session = load_results(folder)
    baseline = choose_baseline(folder, baselines, scenario, session)
    judged = Judged(
        folder=folder,
        record=read_record(folder),
        session=session,
        policy=fix_policy(session, scenario, baseline),
        verdict=judge(session, scenario, baseline),
    )
    return enter_session(judged, provenance)


@command.command()
@STORE
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME", help="Only this scenario; repeatable.")
@click.option("--hardware", multiple=True, metavar="NAME", help="Only this hardware; repeatable.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Only this metric; repeatable. Default: the headlines."
)
@click.option("--since", metavar="DATE", help="Only sessions that began on or after this day.")
@click.option("--last", type=click.IntRange(min=0), help="Newest sessions of each series; 0 for all.  [default: 400]")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--html", type=FILE, metavar="FILE", help="Write a dashboard there as well: one file that works offline.")
@click.option("--output", type=FILE, metavar="FILE", help="Write JSON there instead of to stdout.")
def show(*, store: str, style: str, html: Path | None, output: Path | None, **asked: Any) -> int:
    """Print trends with their changes of level, creep, the spread of runners, false alarms and machine time."""
    _require_extra()
    from perfgate.history.query import ask  # noqa: PLC0415
    from perfgate.history.store import Store  # noqa: PLC0415

    if output is not None and style == "text":
        raise InputError("--output: is for --format json; a table is printed, --html FILE writes a page")
    history = ask(Store(store), _build_question(asked))
    if html is not None:
        from perfgate.history.dashboard import render_dashboard  # noqa: PLC0415

        write(render_dashboard(history).encode(), html)
    if style == "json":
        from perfgate.history.document import format_history  # noqa: PLC0415

        write(format_history(history), output)
    else:
        _print_history(history)
    return 0


def _build_question(asked: dict[str, Any]) -> Question:
    from perfgate.history.imports import read_moment  # noqa: PLC0415
    from perfgate.history.query import LAST, Question  # noqa: PLC0415

    return Question(
        scenarios=asked["scenarios"],
        hardware=asked["hardware"],
        metrics=asked["metrics"],
        since=read_moment(asked["since"]) if asked["since"] else None,
        last=LAST if asked["last"] is None else asked["last"],
    )


def _print_history(history: History) -> None:
    from perfgate.history.listing import (  # noqa: PLC0415
        describe_events,
        describe_ledger,
        tabulate_series,
        tabulate_spending,
    )
    from perfgate.report.table import print_table  # noqa: PLC0415

    print_table(tabulate_series(history.series))
    for series in history.series:
        if events := list(describe_events(series)):
            click.echo(f"\n{series.subject.scenario} on {series.subject.hardware}, {series.subject.title}:")
            for event in events:
                click.echo(f"  {event}")
    click.echo()
    print_table(tabulate_spending(history))
    click.echo()
    for line in describe_ledger(history.ledger):
        click.echo(line)


@command.command(name="import")
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
def bring_in(*, paths: tuple[Path, ...], store: str, **told: Any) -> int:
    """Start with your past: data.js of github-action-benchmark, and bench_serving's JSONL, printed tables and matrix logs.

    Nothing of it is judged. What is imported twice counts once.
    """
    _require_extra()
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
    click.echo(f"{len(runs)} runs read, {len(added)} added, {len(runs) - len(added)} already there; {cold} of them cold")
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


@command.command()
@click.argument("session")
@STORE
@click.option("--reason", required=True, help="Why the verdict was overruled.")
@click.option("--by", "person", required=True, metavar="NAME", help="Who overruled it.")
@click.option("--accepted", is_flag=True, help="The loss is real and accepted; without this the verdict was a false alarm.")
def override(*, session: str, store: str, reason: str, person: str, accepted: bool) -> int:
    """Write into the ledger of false alarms that a person overruled a verdict. SESSION may be cut to its first digits."""
    _require_extra()
    from perfgate.history.query import find_session  # noqa: PLC0415
    from perfgate.history.schema import SCHEMA  # noqa: PLC0415
    from perfgate.history.store import Store  # noqa: PLC0415

    if not reason.strip() or not person.strip():
        raise InputError("--reason and --by: must say something; the ledger is read by people")
    opened = Store(store)
    found = find_session(opened, session)
    ruling = "accepted" if accepted else "false alarm"
    row = {"schema": SCHEMA, "session": found, "ruled": datetime.now(UTC), "person": person, "ruling": ruling, "reason": reason}
    opened.add_override(row)
    click.echo(f"session {found}: {ruling}, {reason}")
    return 0


@command.command()
@STORE
def compact(*, store: str) -> int:
    """Merge the many small files of each month into one; run it now and then, from one place."""
    _require_extra()
    from perfgate.history.store import Store  # noqa: PLC0415

    before, after = Store(store).compact()
    click.echo(f"{store}: {before} files, now {after}")
    return 0


def _require_extra() -> None:
    from perfgate.history import require_extra  # noqa: PLC0415

    require_extra()
