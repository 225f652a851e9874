"""Sum up files of conformance.py: each implementation's relative error over that of SGLang's plain layer, case by case.

A case's numbers are drawn from its seed, so SGLang's answer to it may stand in another file. Of several answers the best
counts: in a process where something wrote astray, SGLang's was judged by a damaged reference.

python benchmarks/kernels/error_ratios.py benchmarks/h200/kernels/conformance-*.jsonl.xz
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from perfgate_moe.exam.cases import Case

BASE = "sglang"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """A file's entries, packed with xz or not; its first line may tell versions, which files of before it do not have."""
    content = path.read_bytes()
    text = lzma.decompress(content) if path.suffix == ".xz" else content
    entries = (json.loads(line) for line in text.decode().splitlines())
    return [entry for entry in entries if "about" not in entry]


def find_ratios(entries: Iterable[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Relative error over SGLang's by implementation and case, where both gave an answer and SGLang's error is not zero.

    Of a case that was answered twice: an implementation's larger error, SGLang's smaller one.
    """
    largest: dict[tuple[str, str], float] = {}
    base: dict[str, float] = {}
    for entry in entries:
        if not entry.get("errors"):
            continue
        name, case, error = entry["implementation"], entry["case"], entry["errors"]["relative"]
        if name == BASE:
            base[case] = min(error, base.get(case, error))
        else:
            largest[name, case] = max(error, largest.get((name, case), error))
    return {(name, case): error / base[case] for (name, case), error in largest.items() if base.get(case)}


def kind_of(text: str) -> str:
    """What a case's numbers are: a quantisation, or the layer's dtype."""
    case = Case.parse(text)
    return case.dtype if case.quant == "none" else case.quant


def rows(ratios: dict[tuple[str, str], float]) -> list[str]:
    """Lines of markdown, one for each implementation and kind of numbers."""
    groups: dict[tuple[str, str], list[float]] = {}
    for (name, case), ratio in ratios.items():
        groups.setdefault((name, kind_of(case)), []).append(ratio)
    return [
        f"| `{name}` | {kind} | {len(all_)} | {median(all_):.3f} | {max(all_):.3f} | {sum(ratio > 1 for ratio in all_)} |"
        for (name, kind), all_ in sorted(groups.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    found = find_ratios(entry for path in parser.parse_args().files for entry in read_entries(path))
    print("| implementation | numbers | cases | median | largest | above 1 |\n|---|---|---|---|---|---|")
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
