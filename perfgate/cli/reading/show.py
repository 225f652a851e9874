"""`perfgate show`: any output of the load generator as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from perfgate.cli.output import FILE, add_format_option, print_json, print_table, say
from perfgate.core import Run
from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.readers.bench_serving import decode, parse_runs, read_bytes
from perfgate.readers.matrix_log import Cell, is_matrix_log, parse_matrix_log
from perfgate.report.escape import plain
from perfgate.report.table import Table
from perfgate.report.words import wording
from perfgate.results.records import SESSION_FILE
from perfgate.results.words import describe_remark
from perfgate.verdict.runs.workloads import show_fact

CELL_METRICS = ("output_tok_per_s", "p99_itl_ms")
# More runs than this stand below one another, with the metrics that people look at first.
MAX_COLUMNS = 4
SHORT_METRICS = ("request_per_s", "output_tok_per_s", "mean_ttft_ms", "median_itl_ms", "p99_itl_ms", "mean_e2e_ms")
NO_RESULT = "no result"


@click.command(name="show")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@add_format_option
def command(*, files: tuple[Path, ...], style: str) -> int:
    """Print the runs of each FILE side by side: bench_serving JSONL, printed results, or a log of a server x client matrix.

    In place of a FILE, - is standard input.
    """
    for file in files:
        if (file / SESSION_FILE).is_file():
            raise InputError(f"{file}: is a result folder; `perfgate check {file}` judges it")
    found = [_read(file) for file in files]
    runs = tuple(run for one in found for run in one.runs)
    cells = found[0].cells if len(found) == 1 else ()
    if style == "json":
        documents = [_describe(one) for one in found]
        print_json(documents[0] if len(documents) == 1 else documents)
        return 0
    print_table(_tabulate_cells(cells) if cells else _tabulate_runs(runs))
    for line in _remark(runs):
        say(line)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a file holds; `cells` where it is the log of a matrix."""

    file: Path
    runs: tuple[Run, ...]
    cells: tuple[Cell, ...] = ()


def _read(file: Path) -> Shown:
    content = read_bytes(file)
    text = "" if content.lstrip()[:1] == b"{" else decode(content)
    if is_matrix_log(text):
        cells = parse_matrix_log(text, str(file))
        return Shown(file=file, cells=cells, runs=tuple(cell.run for cell in cells))
    return Shown(file=file, runs=parse_runs(content, str(file)))


def _tabulate_cells(cells: Sequence[Cell]) -> Table:
    """Servers down, clients across; a combination that was run more than once shows every result."""
    servers, clients = (list(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("server", "client"))

    def fill(server: str, client: str) -> str:
        found = [_summarise(cell.run) for cell in cells if (cell.server, cell.client) == (server, client)]
        return "; ".join(found) or "-"

    return Table(
        header=("server", *clients), rows=[(server, *(fill(server, client) for client in clients)) for server in servers]
    )


def _summarise(run: Run) -> str:
    parts = []
    for name in CELL_METRICS:
        if name in run.values:
            prefix = "" if name == CELL_METRICS[0] else f"{METRICS[name].title} "
            parts.append(prefix + wording.value(name, run.values[name]))
    return ", ".join(parts) or NO_RESULT


def _tabulate_runs(runs: Sequence[Run]) -> Table:
    if len(runs) > MAX_COLUMNS:
        header = ("run", *(f"{METRICS[name].title} ({METRICS[name].unit})" for name in SHORT_METRICS))
        rows = [(run.source, *(_value(run, name) for name in SHORT_METRICS)) for run in runs]
        return Table(header=header, rows=rows)
    counts = [
        ("Completed requests", *(_count(run) for run in runs)),
        ("Output tokens", *(str(run.output_tokens) if run.output_tokens is not None else wording.MISSING for run in runs)),
    ]
    carried = [name for name in METRICS if any(name in run.values for run in runs)]
    rows = [(f"{METRICS[name].title} ({METRICS[name].unit})", *(_value(run, name) for run in runs)) for name in carried]
    return Table(header=("metric", *(run.source for run in runs)), rows=[*counts, *rows])


def _value(run: Run, name: str) -> str:
    return wording.value(name, run.values.get(name), has_unit=False)


def _count(run: Run) -> str:
    return str(run.completed) if run.requested is None else f"{run.completed} of {run.requested}"


def _remark(runs: Sequence[Run]) -> Iterator[str]:
    """What was asked of the server, what voids a run, and what is worth knowing."""
    workloads = {", ".join(f"{name} {show_fact(fact)}" for name, fact in sorted(run.workload.items())) for run in runs}
    if len(workloads) == 1 and (facts := workloads.pop()):
        yield f"workload: {plain(facts)}"
    elif workloads:
        yield f"{len(workloads)} different workloads"
    for run in runs:
        yield from (f"PROBLEM {plain(run.source)}: {plain(describe_remark(problem))}" for problem in run.problems)
        yield from (f"note {plain(run.source)}: {plain(describe_remark(note))}" for note in run.notes)


def _describe_run(run: Run) -> dict[str, Any]:
    return asdict(run) | {name: [describe_remark(remark) for remark in getattr(run, name)] for name in ("problems", "notes")}


def _describe(one: Shown) -> dict[str, Any]:
    content: dict[str, Any] = {"file": str(one.file), "runs": [_describe_run(run) for run in one.runs]}
    if one.cells:
        content["matrix"] = [
            {"server": cell.server, "client": cell.client, "command": cell.command, "first_request_s": cell.first_request_s}
            for cell in one.cells
        ]
    return content
