"""`perfgate export`: windows or runs as a table for pandas, R or a spreadsheet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click
import orjson

from perfgate.cli.output import FILE, say
from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.readers.bench_serving import read_runs
from perfgate.report.openmetrics import ExportedSession, format_openmetrics
from perfgate.results.folders import require_apart
from perfgate.results.frame import build_frame, dump_parquet
from perfgate.results.machine_samples import read_machine_samples
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.results.rows import Row, dump_csv, rows_of_runs, rows_of_sessions
from perfgate.storage.journal import read_utc
from perfgate.storage.places import write_file
from perfgate.storage.rounding import format_count


@click.command(name="export")
@click.argument("sources", nargs=-1, required=True, metavar="RESULT_DIRS_OR_FILES...", type=FILE)
@click.option("--csv", metavar="FILE", type=FILE, help="Write comma separated values.")
@click.option("--parquet", metavar="FILE", type=FILE, help="Write Parquet (needs pyarrow).")
@click.option("--openmetrics", metavar="FILE", type=FILE, help="Write result folders and their verdicts for Prometheus.")
@click.option(
    "--samples",
    metavar="FILE",
    type=FILE,
    help="Write the raw samples of one result folder, a JSON line for each window.",
)
@click.option(
    "--expert-use",
    metavar="FILE",
    type=FILE,
    help="Write how each arm of result folders used its experts, a JSON line for each arm.",
)
def command(
    *,
    sources: tuple[Path, ...],
    csv: Path | None,
    parquet: Path | None,
    openmetrics: Path | None,
    samples: Path | None,
    expert_use: Path | None,
) -> int:
    """Write one row for each window and metric, from result folders or from load generator outputs.

    In place of a FILE, - is standard output.
    """
    given = {
        "--csv": csv,
        "--parquet": parquet,
        "--openmetrics": openmetrics,
        "--samples": samples,
        "--expert-use": expert_use,
    }
    outputs = {option: path for option, path in given.items() if path is not None}
    if not outputs:
        raise InputError(
            "give --csv, --parquet, --openmetrics, --samples or --expert-use with a FILE to say where the numbers go"
        )
    require_apart(outputs, sources)
    if expert_use is not None:
        _write_expert_use(sources, expert_use)
    if samples is not None:
        _write_samples(sources, samples)
    if openmetrics is not None:
        _write_openmetrics(sources, openmetrics)
    if csv is not None or parquet is not None:
        _write_tables(sources, csv, parquet)
    return 0


def _write_tables(sources: tuple[Path, ...], csv: Path | None, parquet: Path | None) -> None:
    rows = list(_read_rows(sources))
    for path, dump in ((csv, dump_csv), (parquet, _dump_parquet)):
        if path is not None:
            write_file(dump(rows), path)
            say(f"{path}: {len(rows)} rows", err=True)


def _dump_parquet(rows: Iterable[Row]) -> bytes:
    return dump_parquet(build_frame(rows))


def _write_openmetrics(sources: tuple[Path, ...], path: Path) -> None:
    judged = []
    for folder in sources:
        if not folder.is_dir():
            raise InputError(f"{folder}: OpenMetrics needs result folders; a load generator's output does not say when it ran")
        begun = read_utc(read_record(folder).begun_utc).timestamp()
        judged.append(ExportedSession(name=folder.resolve().name, begun=begun, case=load_case(folder)))
    write_file(format_openmetrics(judged), path)
    say(f"{path}: {format_count(len(judged), 'session')}", err=True)


def _write_samples(sources: tuple[Path, ...], path: Path) -> None:
    if len(sources) != 1:
        raise InputError("--samples: takes one result folder at a time; export them one after the other")
    read_record(sources[0])
    found = read_machine_samples(sources[0])
    write_file(b"".join(orjson.dumps(window) + b"\n" for window in found.windows), path)
    say(f"{path}: {found.count} samples of {len(found.windows)} windows", err=True)
    if found.torn:
        say(
            f"{sources[0]}: {found.torn} windows are torn, at least {found.lost} samples are lost; the windows that count "
            "keep their readings in windows.jsonl",
            err=True,
        )


def _write_expert_use(sources: tuple[Path, ...], path: Path) -> None:
    lines: list[dict[str, object]] = []
    for folder in sources:
        if not folder.is_dir():
            raise InputError(f"{folder}: --expert-use needs result folders; a load generator's output does not tell of experts")
        _, session = load_results(folder)
        place = {"session": folder.resolve().name, "scenario": session.scenario}
        lines.extend({**place, "arm": arm, **asdict(use)} for arm, use in session.expert_use.items())
    write_file(b"".join(orjson.dumps(line) + b"\n" for line in lines), path)
    say(f"{path}: {len(lines)} arms", err=True)


def _read_rows(sources: tuple[Path, ...]) -> Iterator[Row]:
    folders = [source for source in sources if source.is_dir()]
    if folders and len(folders) != len(sources):
        raise InputError("result folders and files do not mix in one table; export them one after the other")
    if folders:
        return rows_of_sessions(load_results(folder)[1] for folder in folders)
    return rows_of_runs(run for source in sources for run in read_runs(source))
