"""`perfgate export`: windows or runs as a table for pandas, R or a spreadsheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfgate.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame


@click.command(name="export")
@click.argument("sources", nargs=-1, required=True, metavar="RESULT_DIRS_OR_FILES...", type=click.Path(path_type=Path))
@click.option("--csv", metavar="FILE", type=click.Path(path_type=Path), help="Write comma separated values.")
@click.option("--parquet", metavar="FILE", type=click.Path(path_type=Path), help="Write Parquet (needs pyarrow).")
def command(*, sources: tuple[Path, ...], csv: Path | None, parquet: Path | None) -> int:
    """Write one row for each window and metric, from result folders or from load generator outputs."""
    if csv is None and parquet is None:
        raise InputError("give --csv FILE or --parquet FILE to say where the table goes")
    from perfgate.evidence.frame import write_csv, write_parquet  # noqa: PLC0415 - pandas, only when something is written

    frame = _read_frame(sources)
    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            write(frame, path)
            click.echo(f"{path}: {len(frame)} rows", err=True)
    return 0


def _read_frame(sources: tuple[Path, ...]) -> DataFrame:
    from perfgate.evidence.bench_serving import read_runs  # noqa: PLC0415 - as above
    from perfgate.evidence.frame import frame_of_runs, frame_of_sessions  # noqa: PLC0415
    from perfgate.evidence.results import load_results  # noqa: PLC0415

    folders = [source for source in sources if source.is_dir()]
    if folders and len(folders) != len(sources):
        raise InputError("result folders and files do not mix in one table; export them one after the other")
    if folders:
        return frame_of_sessions(load_results(folder)[1] for folder in folders)
    return frame_of_runs(run for source in sources for run in read_runs(source))
