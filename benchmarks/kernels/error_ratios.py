"""Sum up files of conformance.py: each implementation's relative error over that of SGLang's plain layer, case by case.

python benchmarks/kernels/error_ratios.py benchmarks/h200/kernels/conformance-*.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from perfgate.kernels.cases import Case

BASE = "sglang"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """A file's entries; its first line may tell versions, which files before that line was written do not have."""
    entries = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [entry for entry in entries if "about" not in entry]


def find_ratios(entries: Iterable[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Relative error over SGLang's by implementation and case, where both gave an answer and SGLang's error is not zero."""
    measured = [entry for entry in entries if entry.get("errors")]
    base = {entry["case"]: entry["errors"]["relative"] for entry in measured if entry["implementation"] == BASE}
    return {
        (entry["implementation"], entry["case"]): entry["errors"]["relative"] / base[entry["case"]]
        for entry in measured
        if entry["implementation"] != BASE and base.get(entry["case"])
    }


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


def join(files: Iterable[dict[tuple[str, str], float]]) -> dict[tuple[str, str], float]:
    """The ratios of several runs, each against SGLang's answer of its own run; of a case that ran twice, the larger."""
    found: dict[tuple[str, str], float] = {}
    for ratios in files:
        found |= {key: max(ratio, found.get(key, 0.0)) for key, ratio in ratios.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    found = join(find_ratios(read_entries(path)) for path in parser.parse_args().files)
    print("| implementation | numbers | cases | median | largest | above 1 |\n|---|---|---|---|---|---|")
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
