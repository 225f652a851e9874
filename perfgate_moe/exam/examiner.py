"""Run an implementation on cases inside another environment, as a process of its own.

Run by an arm's Python as `python -m perfgate_moe.exam.examiner`; reads a line of JSON for each case, `implementation`, `case`
and `device`, and answers with one: the case's text as `case`, and `not_covered` or `problems` with `share`, the largest error
as a share of what it may be, and `error`, the relative one, and `told`, the line for people; `asked_s` is how long inputs and
oracle took, `answered_s` the implementation with what it compiled and the comparison; `last` where the case has broken the
device, `unposed` where it had no memory for the case's tensors. Needs torch alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import IO, Any

import torch

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.accuracy import TOLERANCES
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import CaseReport, PreparedCase, check, prepare
from perfgate_moe.exam.implementations import Implementation, find

READY = {"ready": True}
"""The first line: the first answer's time begins here."""


def read_object(line: str) -> dict[str, Any] | None:
    """A line of such a process as a JSON object; None for what else the code that it runs may write."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def examine(implementation: Implementation, cases: Iterable[LayerCase], device: str) -> Iterator[dict[str, Any]]:
    """Answer each case, as a dictionary of JSON values."""
    yield from (_ask(implementation, case, device) for case in cases)


def _ask(implementation: Implementation, case: LayerCase, device: str) -> dict[str, Any]:
    """One answer with its times; a case's tensors go before the next is built."""
    begun = monotonic()
    try:
        exam = prepare(case, device)
    except torch.OutOfMemoryError as error:
        reason = str(error).partition("\n")[0]
        problem = f"its tensors cannot be made: {reason}"
        answer = {"problems": [problem], "share": 0.0, "error": 0.0, "told": f"not posed: {problem}", "unposed": True}
        return {"case": str(case), **answer, "asked_s": monotonic() - begun, "answered_s": 0.0}
    asked = monotonic()
    answer = _answer(implementation, exam)
    return {"case": str(case), **answer, "asked_s": asked - begun, "answered_s": monotonic() - asked}


def _answer(implementation: Implementation, exam: PreparedCase) -> dict[str, Any]:
    """What an implementation makes of a case."""
    try:
        report = check(implementation, exam)
    except NotApplicableError as reason:
        return {"not_covered": str(reason)}
    error = 0.0 if report.errors is None else report.errors.relative
    return {"problems": list(report.problems), "share": find_share(report), "error": error, "told": str(report)}


def find_share(report: CaseReport) -> float:
    """The largest of a report's errors, each as a share of its limit; 0 where there is no answer to measure."""
    if report.errors is None:
        return 0.0
    limits = TOLERANCES[report.case.precision]
    return float(max(getattr(report.errors, one.name) / getattr(limits, one.name) for one in fields(report.errors)))


@contextmanager
def open_requests() -> Iterator[tuple[IO[str], IO[str]]]:
    """Standard input and output for requests and answers alone, kept from the code that is asked."""
    # What the implementation prints goes to standard error, or half a line would spoil an answer; and it reads no request.
    questions = os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    with questions, answers, Path(os.devnull).open(encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield questions, answers


def main() -> None:
    """Answer each request on standard input as it comes; end with the input, or where the device answers nothing more."""
    with open_requests() as (questions, answers):
        _serve(questions, answers)


def _serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer until there is no more to be asked."""
    is_ready = False
    for request in map(json.loads, questions):
        implementation, device = find(request["implementation"]), request["device"]
        if not is_ready:
            implementation.load()
            print(json.dumps(READY), file=answers, flush=True)
            is_ready = True
        for answer in examine(implementation, [LayerCase.parse(request["case"])], device):
            if answer.get("problems") and is_broken(device):
                answer["last"] = True
            print(json.dumps(answer), file=answers, flush=True)
            if "last" in answer:
                return
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()  # other processes ask on this device


def is_broken(device: str) -> bool:
    """Whether the device answers nothing more: after an illegal access every later call of the process fails."""
    try:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main()
