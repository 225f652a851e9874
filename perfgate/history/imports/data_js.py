"""Import `data.js` of github-action-benchmark: the whole past of a repository in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from perfgate.core import Better
from perfgate.history.imports.past import ForeignNumber, Past, PastRun
from perfgate.history.trends import COMMIT, Provenance
from perfgate.machine.fingerprint import slug
from perfgate.readers.bench_serving import read_bytes
from perfgate.storage.schema import LOOSE, parse_json
from perfgate.storage.stream import STREAM, open_file

ORIGIN = "github-action-benchmark"
HIGHER = ("benchmarkjs", "pytest", "customBiggerIsBetter")
"""Its tools whose numbers are better when higher; for every other it says that they are better when lower."""

_ASSIGNMENT = re.compile(rb"^\s*window\.BENCHMARK_DATA\s*=\s*")
ShortText = Annotated[str, Field(max_length=500)]


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Bench:
    name: ShortText
    # Some tools write it as text.
    value: float
    unit: ShortText = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Commit:
    id: ShortText


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Result:
    commit: _Commit
    date: Annotated[float, Field(gt=0, lt=4e12)]
    tool: ShortText
    benches: tuple[_Bench, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _File:
    entries: dict[str, tuple[_Result, ...]]


def is_data_js(path: Path) -> bool:
    """Tell whether a file is one of github-action-benchmark's, by its first words."""
    if path != STREAM and not path.is_file():
        return False
    with open_file(path) as file:
        return _ASSIGNMENT.match(file.read(200)) is not None


def read_data_js(path: Path, past: Past) -> Iterator[PastRun]:
    """Read every result of the file. Raise EvidenceError naming the field that is not as that tool writes it."""
    for suite, results in _parse(path).entries.items():
        for result in results:
            yield _read_result(path, suite, result, past)


def _parse(path: Path) -> _File:
    content = _ASSIGNMENT.sub(b"", read_bytes(path)).rstrip().removesuffix(b";")
    return parse_json(content, _File, path, "give data.js as github-action-benchmark wrote it")


def _read_result(path: Path, suite: str, result: _Result, past: Past) -> PastRun:
    better = str(Better.HIGHER if result.tool in HIGHER else Better.LOWER)
    kept = [bench for bench in result.benches if isfinite(bench.value)]
    commit = result.commit.id.lower()
    return PastRun(
        origin=ORIGIN,
        source=str(path),
        scenario=slug(past.scenario or suite)[:64],
        hardware=slug(past.hardware),
        at=datetime.fromtimestamp(result.date / 1e3, UTC),
        provenance=Provenance(commit=commit if COMMIT.fullmatch(commit) else "", runner=past.provenance.runner),
        workload={"suite": suite, "tool": result.tool},
        values={past.metrics[bench.name]: bench.value for bench in kept if bench.name in past.metrics},
        others=tuple(
            ForeignNumber(name=bench.name, unit=bench.unit, better=better, value=bench.value)
            for bench in kept
            if bench.name not in past.metrics
        ),
    )
