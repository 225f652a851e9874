"""Import files of bench_serving: JSONL, printed tables and matrix logs, one by one or by the folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perfgate.core import Run
from perfgate.errors import EvidenceError
from perfgate.history.imports.past import Past, PastRun, read_moment
from perfgate.history.trends import Provenance
from perfgate.machine.fingerprint import slug
from perfgate.readers.bench_serving import decode, parse_runs, read_bytes
from perfgate.readers.matrix_log import is_matrix_log, parse_matrix_log
from perfgate.readers.run_checks import NO_LIMIT
from perfgate.storage.stream import STREAM
from perfgate.verdict.runs.workloads import order_runs, show_fact, split_cold

ORIGIN = "bench_serving"
SUFFIXES = (".jsonl", ".json", ".txt", ".log", ".out", ".gz")
_NUMBER = re.compile(r"[\W_]*(\d+)$")
# A number that stands by itself, and one word behind it: moe_1_cold, not rand256x32 and not toggle0_inf.
_REMARKED = re.compile(r"[\W_]+(\d+)[\W_]+[A-Za-z]+$")
GROUPS = ("date", "commit", "runner", "release", "scenario")


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseRuns:
    """The runs of all files, and a line for each file of a folder that holds none."""

    runs: tuple[PastRun, ...]
    skipped: tuple[str, ...]


def read_past_runs(paths: Sequence[Path], past: Past) -> LooseRuns:
    """Read files and folders. Raise EvidenceError for a given file without a result, InputError for a bad date."""
    runs: list[PastRun] = []
    skipped: list[str] = []
    for path in paths:
        for file in _list_files(path):
            try:
                runs.extend(_read_file(file, str(file.relative_to(path)) if path.is_dir() else file.name, past))
            except EvidenceError as error:
                if not path.is_dir():
                    raise
                skipped.append(str(error))
    return LooseRuns(runs=_mark_cold(runs), skipped=tuple(skipped))


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file() and not file.is_symlink())


def _read_file(file: Path, name: str, past: Past) -> Iterator[PastRun]:
    told = _search(name, past)
    at = past.at or _read_changed(file)
    if "date" in told:
        at = read_moment(told["date"])
    given = past.provenance
    provenance = Provenance(
        commit=told.get("commit", given.commit),
        runner=told.get("runner", given.runner),
        release=told.get("release", given.release),
    )
    for index, (found, run) in enumerate(_read_runs(file)):
        yield PastRun(
            origin=ORIGIN,
            source=run.source,
            scenario=slug(told.get("scenario", past.scenario) or found or _name_workload(run)),
            hardware=slug(past.hardware),
            # Runs of one file keep their order.
            at=at + timedelta(seconds=index),
            provenance=provenance,
            workload=run.workload,
            values=dict(run.values),
            run=run,
        )


def _read_changed(file: Path) -> datetime:
    """When a file was last changed; now for standard input."""
    if file == STREAM:
        return datetime.now(UTC).replace(microsecond=0)
    return datetime.fromtimestamp(int(file.stat().st_mtime) if file.exists() else 0, UTC)


def _search(name: str, past: Past) -> Mapping[str, str]:
    match = past.pattern.search(name) if past.pattern else None
    return {group: text for group, text in match.groupdict().items() if text and group in GROUPS} if match else {}


def _read_runs(file: Path) -> list[tuple[str, Run]]:
    """Each run with the name that a matrix log gives it; a combination that failed is no run."""
    content = read_bytes(file)
    text = "" if content.lstrip()[:1] == b"{" else decode(content)
    if is_matrix_log(text):
        return [(f"{cell.server}-{cell.client}", cell.run) for cell in parse_matrix_log(text, str(file)) if cell.run.values]
    return [("", run) for run in parse_runs(content, str(file))]


def _name_workload(run: Run) -> str:
    """Name what was asked of the server, for example random-256x32-rate20-c64-n100."""
    facts = {name: show_fact(fact) for name, fact in run.workload.items() if fact != NO_LIMIT}
    lengths = [facts[name] for name in ("random_input_len", "random_output_len") if name in facts]
    parts = [facts.get("dataset", facts.get("backend", "bench-serving")), "x".join(lengths)]
    for prefix, name in (("rate", "request_rate"), ("c", "max_concurrency"), ("n", "num_prompts")):
        if name in facts:
            parts.append(f"{prefix}{facts[name]}")
    return re.sub(r"-{2,}", "-", "-".join(part for part in parts if part))[:64]


def _split_name(source: str, number: re.Pattern[str]) -> tuple[str, str] | None:
    """The file of a run without what `number` finds at its end, and the number itself; None where it finds none."""
    folder, _, name = source.rpartition("/")
    stem = name.partition(".")[0]
    found = number.search(stem)
    return (f"{folder}/{stem[: found.start()]}", found[1]) if found else None


def _name_series(sources: Iterable[str]) -> dict[str, str]:
    """The series of each file: off_1.txt and off_2.txt are runs of one server, on_1.txt of another.

    A word behind the number is a remark on a run, as in moe_1_cold.txt, where moe_2.txt is there and moe_1.txt is not. Else it
    tells servers apart, as in run_1_before.txt and run_1_after.txt.
    """
    named = {source: _split_name(source, _NUMBER) for source in sources}
    taken = {pair for pair in named.values() if pair}
    bare = {series for series, _ in taken}
    found = {source: pair[0] if pair else source.partition(":")[0] for source, pair in named.items()}
    for source, pair in named.items():
        remarked = _split_name(source, _REMARKED) if pair is None else None
        if remarked and remarked[0] in bare and remarked not in taken:
            found[source] = remarked[0]
    return found


def _mark_cold(runs: Sequence[PastRun]) -> tuple[PastRun, ...]:
    """Mark leading runs of one workload, commit and series of files that measured a server which was still warming up."""
    series = _name_series(past.source for past in runs)
    grouped: dict[object, list[Run]] = {}
    for past in runs:
        if past.run:
            key = (past.scenario, tuple(sorted(map(str, past.workload.items()))), past.provenance, series[past.source])
            grouped.setdefault(key, []).append(past.run)
    cold = {id(one.run): one for found in grouped.values() for one in split_cold(order_runs(found))[0]}
    return tuple(replace(past, cold=cold.get(id(past.run))) for past in runs)
