"""Run an implementation on cases inside another environment, as a process of its own.

Run by an arm's Python as `python -m perfgate_moe.exam.examiner`; reads one JSON request and prints one JSON line a case:
its text as `case`, and `not_covered` or `problems` with `share`, the largest error as a share of what it may be, and
`error`, the relative one, and `told`, the line for people. Needs torch alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import torch

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.accuracy import TOLERANCES
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import CaseReport, check, prepare
from perfgate_moe.exam.implementations import Implementation, find

READY = {"ready": True}
"""The first line: the first answer's time begins here."""

BROKEN_DEVICE = 75
"""The exit code of a process whose device a case has broken: another process can answer what is left."""


def examine(implementation: Implementation, cases: Iterable[LayerCase], device: str) -> Iterator[dict[str, Any]]:
    """Answer each case, as a dictionary of JSON values."""
    for case in cases:
        try:
            report = check(implementation, prepare(case, device))
        except NotApplicableError as reason:
            yield {"case": str(case), "not_covered": str(reason)}
            continue
        error = 0.0 if report.errors is None else report.errors.relative
        known = {"problems": list(report.problems), "share": find_share(report), "error": error}
        yield {"case": str(case), **known, "told": str(report)}


def find_share(report: CaseReport) -> float:
    """The largest of a report's errors, each as a share of its limit; 0 where there is no answer to measure."""
    if report.errors is None:
        return 0.0
    limits = TOLERANCES[report.case.precision]
    return float(max(getattr(report.errors, one.name) / getattr(limits, one.name) for one in fields(report.errors)))


def main() -> int:
    """Answer the request on standard input, a line as soon as a case is done; a process that dies has answered what it did."""
    request = json.load(sys.stdin)
    # What the implementation prints goes to standard error, or half a line of it would spoil an answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        implementation = find(request["implementation"])
        implementation.load()
        print(json.dumps(READY), file=answers, flush=True)
        for answer in examine(implementation, map(LayerCase.parse, request["cases"]), request["device"]):
            print(json.dumps(answer), file=answers, flush=True)
            if answer.get("problems") and is_broken(request["device"]):
                return BROKEN_DEVICE
    return 0


def is_broken(device: str) -> bool:
    """Whether the device answers nothing more: after an illegal access every later call of the process fails."""
    try:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
