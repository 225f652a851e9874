"""Judge implementations over a matrix on one GPU, several processes at a time; one JSON line per implementation and case.

python benchmarks/kernels/conformance.py --matrix full --impl triton-slots --impl sglang --out OUT.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from perfgate.kernels.cases import Case, full_matrix, quick_matrix

MATRICES = {"quick": quick_matrix, "full": full_matrix}


def judge(task: tuple[str, list[str], int]) -> list[dict[str, object]]:
    """In a worker: one case through every implementation, its oracle computed once."""
    import torch

    from perfgate.kernels.conformance import check, prepare
    from perfgate.kernels.implementations import find
    from perfgate.kernels.problem import NotApplicableError

    text, names, reruns = task
    exam = prepare(Case.parse(text), "cuda")
    found: list[dict[str, object]] = []
    for name in names:
        entry: dict[str, object] = {"implementation": name, "case": text}
        try:
            report = check(find(name), exam, reruns=reruns)
            entry |= {"problems": report.problems, "errors": report.errors and asdict(report.errors)}
        except NotApplicableError as reason:
            entry["not_covered"] = str(reason)
        found.append(entry)
    del exam
    torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", choices=MATRICES, default="quick")
    parser.add_argument("--impl", action="append", required=True)
    parser.add_argument("--only", default="", help="cases whose text contains this")
    parser.add_argument("--reruns", type=int, default=2, help="of implementations that promise the same bits")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--deadline", type=float, default=1e9, help="collect no result after this many seconds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    tasks = [(str(case), options.impl, options.reruns) for case in MATRICES[options.matrix]() if options.only in str(case)]
    tally: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool, options.out.open("w") as out:
        for entries in pool.map(judge, tasks):
            for entry in entries:
                out.write(json.dumps(entry) + "\n")
                state = "not covered" if "not_covered" in entry else "wrong" if entry["problems"] else "sound"
                tally[str(entry["implementation"]), state] += 1
                if state == "wrong" and tally[str(entry["implementation"]), state] <= 6:
                    print(entry["implementation"], entry["case"], entry["problems"], flush=True)
            if time.perf_counter() - began > options.deadline:
                print(f"stopped after {options.deadline} s")
                pool.shutdown(wait=False, cancel_futures=True)
                break
    for (name, state), count in sorted(tally.items()):
        print(f"{name:20} {state:12} {count}")
    print(f"{len(tasks)} cases, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
