"""Rates with their bounds, and result files that say how they were made."""

from __future__ import annotations

import json
import lzma
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfgate import __version__
from perfgate.stats.binomial import bound_rate, bound_rate_below

RESULTS = Path(__file__).parent / "results"


def as_rate(count: int, tries: int) -> dict[str, float]:
    """A share with its one-sided 95 % Clopper-Pearson bounds."""
    return {
        "count": count,
        "tries": tries,
        "rate": round(count / tries, 6),
        "upper95": round(bound_rate(count, tries), 6),
        "lower95": round(bound_rate_below(count, tries), 6),
    }


def write_results(name: str, began: float, facts: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write `results/NAME.json.xz` with the command, versions and wall time; `began` is from time.perf_counter()."""
    import numpy as np
    import scipy

    module = sys.modules["__main__"].__spec__
    command = f"python -m {module.name}" if module else Path(sys.argv[0]).name
    made = {
        "command": " ".join([command, *_hide_paths(sys.argv[1:])]),
        "perfgate": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "wall_s": round(time.perf_counter() - began, 1),
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json.xz"
    write_packed(path, {"made": made, **facts})
    return path


def read_results(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """What `write_results` wrote last; None when it has not been run."""
    path = folder / f"{name}.json.xz"
    return read_packed(path) if path.exists() else None


def write_packed(path: Path, facts: Mapping[str, Any]) -> None:
    """Write results as JSON, packed by xz: equal facts give equal bytes."""
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    path.write_bytes(lzma.compress(f"{text}\n".encode(), preset=9))


def read_packed(path: Path) -> dict[str, Any]:
    """What `write_packed` wrote."""
    return dict(json.loads(lzma.decompress(path.read_bytes())))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they need to be."""
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _hide_paths(argv: list[str]) -> list[str]:
    """Keep options, not where a user's files lie."""
    return ["DIR" if "/" in one else one for one in argv]
