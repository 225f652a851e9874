"""Times of MoE layers over the number of tokens: from the blocks that are judged, or from a survey of many implementations.

The survey is what `benchmarks/kernels/layer.py` writes: one JSON file with a cell for each shape and size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from perfgate.evidence import LayerBlock, Microseconds
from perfgate.storage.journal import read_bytes, read_json
from perfgate.storage.schema import parse_any

# The same implementation timed twice is a control, and no line of its own.
CONTROL = "-again"
SIDES = ("base", "candidate")


@checked(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore", defer_build=True))
class _SurveyCell:
    shape: str
    tokens: Annotated[int, Field(ge=1)]
    samples_us: Mapping[str, Annotated[tuple[Microseconds, ...], Field(min_length=1)]]
    floor_us: Microseconds | None = None


@checked(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore", defer_build=True))
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
