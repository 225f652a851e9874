"""Which of torch's symbols do the libraries of a wheel want, and which of them does another torch lack?

    python -m benchmarks.h200.campaign.symbols torch-2.11.0-*.whl sglang_kernel-*.whl

Names are read by binutils' `nm`; nothing is loaded. A library that wants a missing name cannot be loaded beside that torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

from benchmarks.h200.campaign.bundle import is_any

TORCH = "torch/lib/*.so*"
# What a server on a Hopper GPU loads at its start.
LOADED = ("sgl_kernel/sm90/*.so", "sgl_kernel/spatial_ops*.so", "vllm/*_stable_libtorch*.so")
OWN = ("3c10", "2at", "5torch", "aoti_torch")
"""What the names of torch's own functions hold: a namespace and its length, or the beginning of its stable interface."""


def list_symbols(wheel: Path, patterns: Sequence[str], which: str) -> Iterator[tuple[str, set[str]]]:
    """Each library of a wheel whose name matches a pattern, with the dynamic symbols that `nm` lists for `which`."""
    with ZipFile(wheel) as files, tempfile.TemporaryDirectory() as folder:
        for name in sorted(files.namelist()):
            if is_any(name, patterns):
                path = files.extract(name, folder)
                told = subprocess.run(["nm", "-D", which, path], capture_output=True, text=True, check=True)  # noqa: S607
                yield name, {line.split()[-1].partition("@")[0] for line in told.stdout.splitlines() if line.strip()}


def list_missing(defined: set[str], wheel: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Each library of a wheel: how many of torch's names it wants, and those that are not defined."""
    for library, names in list_symbols(wheel, LOADED, "--undefined-only"):
        wanted = {name for name in names if any(own in name for own in OWN)}
        yield library, len(wanted), sorted(wanted - defined)


def main(torch: Path, wheels: Sequence[Path]) -> None:
    """Print a line for each library, and the names that it misses below."""
    defined = set().union(*(names for _, names in list_symbols(torch, (TORCH,), "--defined-only")))
    for wheel in wheels:
        for library, wanted, missing in list_missing(defined, wheel):
            print(f"{wheel.name.split('-cp')[0]} {library}: {len(missing)} of {wanted} missing", *missing, sep="\n  ")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
