"""Read the result tables that `bench_serving` prints, as people paste them: several in one file, with the log around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfgate.core import Remark, RemarkKind, Run
from perfgate.errors import EvidenceError
from perfgate.readers.run_checks import NO_LIMIT, as_count, as_number, check_run, read_rate

HEADER = re.compile(r"=\s{0,9}Serving Benchmark Result\s{0,9}=", re.IGNORECASE)
FOOTER = "=" * 20
MAX_DIGITS = 12
ANSI_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Label as printed, lower case -> name of perfgate.metrics.METRICS.
VALUE_LABELS = {
    "request throughput (req/s)": "request_per_s",
    "output token throughput (tok/s)": "output_tok_per_s",
    "total token throughput (tok/s)": "total_tok_per_s",
    "total throughput (tok/s)": "total_tok_per_s",
    "mean e2e latency (ms)": "mean_e2e_ms",
    "median e2e latency (ms)": "median_e2e_ms",
    "p99 e2e latency (ms)": "p99_e2e_ms",
    "mean e2el (ms)": "mean_e2e_ms",
    "median e2el (ms)": "median_e2e_ms",
    "p99 e2el (ms)": "p99_e2e_ms",
    "mean ttft (ms)": "mean_ttft_ms",
    "median ttft (ms)": "median_ttft_ms",
    "p99 ttft (ms)": "p99_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "mean itl (ms)": "mean_itl_ms",
    "median itl (ms)": "median_itl_ms",
    "p95 itl (ms)": "p95_itl_ms",
    "p99 itl (ms)": "p99_itl_ms",
    "max itl (ms)": "max_itl_ms",
}
COUNT_LABELS = {
    "successful requests": "completed",
    "total input tokens": "input_tokens",
    "total generated tokens": "output_tokens",
    "total generated tokens (retokenized)": "retokenized",
}
WORKLOAD_LABELS = {
    "backend": "backend",
    "traffic request rate": "request_rate",
    "max request concurrency": "max_concurrency",
    # The spelling of versions before May 2025, and another tool's.
    "max reqeuest concurrency": "max_concurrency",
    "maximum request concurrency": "max_concurrency",
}
OTHER_LABELS = ("benchmark duration (s)", "peak output token throughput (tok/s)")
LABELS = VALUE_LABELS | COUNT_LABELS | WORKLOAD_LABELS | dict.fromkeys(OTHER_LABELS, "")
# Continuous-integration logs put time stamps before a line, so a label may stand anywhere in it; the longest one wins.
ROW = re.compile(
    rf"(?:^|\s)({'|'.join(re.escape(label) for label in sorted(LABELS, key=len, reverse=True))}):\s*(.*)$", re.IGNORECASE
)

# Arguments that decide the prompts, as the load generator prints them in its argument line.
ARGUMENT = re.compile(
    r"\b(dataset_name|model|num_prompts|random_input_len|random_output_len|random_range_ratio)=('[^']*'|[^,()\s]+)"
)
ARGUMENT_NAMES = {"dataset_name": "dataset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """The text of one table: its rows by lower-case label with their line numbers, and the argument line before it."""

    line: int
    rows: Mapping[str, tuple[int, str]]
    arguments: Mapping[str, str]
    is_closed: bool


def has_table(text: str) -> bool:
    """Tell whether a text holds at least one result table."""
    return HEADER.search(text) is not None


def parse_tables(text: str, source: str) -> tuple[Run, ...]:
    """Read every table of a text as a run. Raise EvidenceError with file and line for a row that holds no number."""
    tables = tuple(_find_tables(text, source))
    only = len(tables) == 1
    return tuple(_as_run(table, source if only else f"{source}:{table.line}", source) for table in tables)


def _find_tables(text: str, source: str) -> Iterator[PrintedTable]:
    arguments: dict[str, str] = {}
    start: int | None = None
    rows: dict[str, tuple[int, str]] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        line = ANSI_CODES.sub("", raw).rstrip()
        if HEADER.search(line):
            if start is not None:
                yield PrintedTable(line=start, rows=rows, arguments=arguments, is_closed=False)
            start, rows = number, {}
        elif start is None:
            arguments |= _read_arguments(line)
        elif line.endswith(FOOTER):
            yield PrintedTable(line=start, rows=rows, arguments=arguments, is_closed=True)
            start, arguments = None, {}
        elif row := ROW.search(line):
            label = row[1].lower()
            if label in rows:
                raise EvidenceError(f"{source}:{number}: {row[1]}: given twice in one table; paste each table whole")
            rows[label] = (number, row[2])
    if start is not None:
        yield PrintedTable(line=start, rows=rows, arguments=arguments, is_closed=False)


def _read_arguments(line: str) -> dict[str, str]:
    if "Namespace(" not in line:
        return {}
    return {name: value.strip("'") for name, value in ARGUMENT.findall(line) if value != "None"}


def _as_run(table: PrintedTable, source: str, path: str) -> Run:
    values = {name: _number(table, label, path) for label, name in VALUE_LABELS.items() if label in table.rows}
    counts = {name: _count(table, label, path) for label, name in COUNT_LABELS.items()}
    requested = table.arguments.get("num_prompts", "")
    return check_run(
        Run(
            source=source,
            values=values,
            workload=_workload(table, path),
            requested=int(requested) if requested.isdecimal() and len(requested) <= MAX_DIGITS else None,
            completed=counts["completed"] or 0,
            input_tokens=counts["input_tokens"],
            output_tokens=counts["output_tokens"],
            duration_s=_number(table, OTHER_LABELS[0], path) if OTHER_LABELS[0] in table.rows else None,
            problems=() if table.is_closed else (Remark(kind=RemarkKind.OPEN_TABLE),),
        ),
        retokenized=counts["retokenized"],
    )


def _number(table: PrintedTable, label: str, path: str) -> float:
    line, text = table.rows[label]
    try:
        value = float(text)
    except ValueError:
        raise EvidenceError(f"{path}:{line}: {label}: expected a number, found {text[:40]!r}; paste the table whole") from None
    return as_number(value, f"{path}:{line}", label) or 0.0


def _count(table: PrintedTable, label: str, path: str) -> int | None:
    if label not in table.rows:
        return None
    return as_count(_number(table, label, path), f"{path}:{table.rows[label][0]}", label)


def _workload(table: PrintedTable, path: str) -> dict[str, str | int | float]:
    facts: dict[str, str | int | float | None] = {}
    for name, text in table.arguments.items():
        if name.startswith("random_"):
            facts[name] = read_rate(text) if table.arguments.get("dataset_name", "").startswith("random") else None
        elif name != "num_prompts":
            facts[ARGUMENT_NAMES.get(name, name)] = text.rstrip("/").rsplit("/", 1)[-1] if name == "model" else text
    for label, name in WORKLOAD_LABELS.items():
        if label not in table.rows:
            continue
        text = table.rows[label][1]
        if name == "request_rate":
            facts[name] = read_rate(text)
        elif name == "max_concurrency":
            facts[name] = NO_LIMIT if text in (NO_LIMIT, "None") else _count(table, label, path)
        else:
            facts[name] = text
    return {name: value for name, value in facts.items() if value is not None and value != ""}
