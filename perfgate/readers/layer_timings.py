"""Timings of MoE layers as pytest-benchmark stores them: one file is one process, and so one block of evidence."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfgate.errors import EvidenceError
from perfgate.evidence import Layer, LayerBlock
from perfgate.results.records import SESSION_FILE
from perfgate.storage.journal import read_bytes
from perfgate.storage.schema import adapt, describe_first, parse_any

SUFFIX = ".json"


def find_timings(path: Path) -> tuple[Path, ...]:
    """The files of timings that `path` is or holds; none for the folder of a serving session."""
    if path.is_file():
        return (path,) if path.suffix == SUFFIX else ()
    if (path / SESSION_FILE).exists():
        return ()
    return tuple(sorted(path.rglob(f"*{SUFFIX}")))


def read_timings(files: tuple[Path, ...]) -> tuple[LayerBlock, ...]:
    """Blocks in the order in which they were measured. EvidenceError names the file and field that cannot be used."""
    return tuple(sorted((_read(file) for file in files), key=lambda block: (block.begun, block.source)))


def _read(file: Path) -> LayerBlock:
    content = read_bytes(file)
    stored = parse_any(content, file, "measure again")
    if not isinstance(stored, dict) or not isinstance(stored.get("benchmarks"), list):
        raise EvidenceError(f"{file}: no pytest-benchmark file: make it with benchmarks/kernels/test_layers.py")
    try:
        facts = adapt(dict[str, str]).validate_python(_find_own(stored.get("machine_info")))
        layers = [_read_layer(entry) for entry in stored["benchmarks"]]
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


def _read_layer(entry: Any) -> Layer:
    return adapt(Layer).validate_python(_find_own(entry.get("extra_info") if isinstance(entry, dict) else None))


def _find_own(info: Any) -> Any:
    """What was stored under our name; None where there is nothing of ours."""
    return info.get("perfgate") if isinstance(info, dict) else None


def _lengths(layer: Layer) -> tuple[int, int]:
    return len(layer.samples_us.again), len(layer.samples_us.candidate)
