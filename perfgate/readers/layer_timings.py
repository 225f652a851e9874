"""Timings of MoE layers: blocks that are judged, and surveys of many implementations, as curves over the number of tokens.

A block is a file of pytest-benchmark: one file is one process. A survey is what `benchmarks/kernels/layer.py` writes: one JSON
file with a cell for each shape and size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from perfgate.errors import EvidenceError
from perfgate.evidence import Layer, LayerBlock, Microseconds
from perfgate.results.records import SESSION_FILE
from perfgate.storage.journal import read_bytes, read_json
from perfgate.storage.schema import LOOSE, adapt, describe_first, find, parse_any

SUFFIX = ".json"
# The same implementation timed twice is a control, and no line of its own.
CONTROL = "-again"
SIDES = ("base", "candidate")


def find_timings(path: Path) -> tuple[Path, ...]:
    """The files of timings that `path` is or holds; none for the folder of a serving session."""
    if path.is_file():
        return (path,) if path.suffix == SUFFIX else ()
    if (path / SESSION_FILE).exists():
        return ()
    return tuple(sorted(path.rglob(f"*{SUFFIX}")))


def holds_timings(file: Path) -> bool:
    """Whether a file is one of pytest-benchmark, as far as its outermost field tells."""
    try:
        return _has_benchmarks(parse_any(read_bytes(file), file, "measure again"))
    except EvidenceError:
        return False


def _has_benchmarks(stored: Any) -> bool:
    return isinstance(stored, dict) and isinstance(stored.get("benchmarks"), list)


def read_timings(files: tuple[Path, ...]) -> tuple[LayerBlock, ...]:
    """Blocks in the order in which they were measured. EvidenceError names the file and field that cannot be used."""
    return tuple(sorted((_read(file) for file in files), key=lambda block: (block.begun, block.source)))


def _read(file: Path) -> LayerBlock:
    content = read_bytes(file)
    stored = parse_any(content, file, "measure again")
    if not _has_benchmarks(stored):
        raise EvidenceError(f"{file}: no pytest-benchmark file: make it with benchmarks/kernels/test_layers.py")
    try:
        facts = adapt(dict[str, str]).validate_python(find(stored, "machine_info.perfgate"))
        layers = [adapt(Layer).validate_python(find(entry, "extra_info.perfgate")) for entry in stored["benchmarks"]]
    except ValidationError as error:
        found = describe_first(error, whole="machine_info.perfgate")
        raise EvidenceError(f"{file}: {found}; make it with benchmarks/kernels/test_layers.py") from None
    uneven = [layer.name for layer in layers if len({len(layer.samples_us.base), *_lengths(layer)}) > 1]
    if uneven:
        raise EvidenceError(f"{file}: {uneven[0]}: samples_us: sides of different lengths; measure again")
    names = [layer.name for layer in layers]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise EvidenceError(f"{file}: {repeated[0]}: is timed twice; one file is one process, so store each in its own")
    return LayerBlock(
        source=file.name,
        digest=hashlib.sha256(content).hexdigest(),
        begun=str(stored.get("datetime", "")),
        facts=facts,
        layers={layer.name: layer for layer in layers},
    )


def _lengths(layer: Layer) -> tuple[int, int]:
    return len(layer.samples_us.again), len(layer.samples_us.candidate)


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _SurveyCell:
    shape: str
    tokens: Annotated[int, Field(ge=1)]
    samples_us: Mapping[str, Annotated[tuple[Microseconds, ...], Field(min_length=1)]]
    floor_us: Microseconds | None = None


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Survey:
    cells: Annotated[tuple[_SurveyCell, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPoint:
    """One number of tokens: microseconds of each implementation, and the least that the card allows, where that is known."""

    tokens: int
    floor_us: float | None
    samples_us: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCurve:
    """One shape of a layer over the number of tokens, in rising order."""

    shape: str
    points: tuple[LayerPoint, ...]


def is_survey(file: Path) -> bool:
    """Whether a JSON file is a survey. Raise EvidenceError where it is no JSON or cannot be read."""
    content = parse_any(read_bytes(file), file, "measure again")
    return isinstance(content, dict) and "cells" in content


def read_survey(file: Path) -> tuple[LayerCurve, ...]:
    """The curves of a survey. Raise EvidenceError naming the field that cannot be used."""
    survey = read_json(file, _Survey, "make it with benchmarks/kernels/layer.py")
    return _sort(
        (
            cell.shape,
            LayerPoint(
                tokens=cell.tokens,
                floor_us=cell.floor_us,
                samples_us={name: found for name, found in cell.samples_us.items() if not name.endswith(CONTROL)},
            ),
        )
        for cell in survey.cells
    )


def trace_blocks(blocks: Sequence[LayerBlock]) -> tuple[LayerCurve, ...]:
    """The curves of both sides, of the samples of all blocks."""
    names = dict.fromkeys(name for block in blocks for name in block.layers)
    found = []
    for name in names:
        layers = [block.layers[name] for block in blocks if name in block.layers]
        samples = {side: [value for layer in layers for value in getattr(layer.samples_us, side)] for side in SIDES}
        point = LayerPoint(tokens=layers[0].tokens, floor_us=layers[0].floor_us, samples_us=samples)
        found.append((layers[0].shape, point))
    return _sort(found)


def _sort(points: Iterable[tuple[str, LayerPoint]]) -> tuple[LayerCurve, ...]:
    shapes: dict[str, list[LayerPoint]] = {}
    for shape, point in points:
        shapes.setdefault(shape, []).append(point)
    return tuple(
        LayerCurve(shape=shape, points=tuple(sorted(found, key=lambda point: point.tokens))) for shape, found in shapes.items()
    )
