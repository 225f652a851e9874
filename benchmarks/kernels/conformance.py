"""Judge implementations over a matrix on one GPU, several processes at a time; one JSON line per implementation and case.

python benchmarks/kernels/conformance.py --matrix full --impl triton-slots --impl sglang --out OUT.jsonl

The first line tells versions, commit and command. A case that breaks the device or ends its process is wrong in that
implementation, and a new process answers what is left. Large layers wait until the device has memory for them; one whose
tensors cannot be made all the same is not judged. The exit code is 3 unless every case is answered.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue

from perfgate_moe.exam.cases import LayerCase, exam_matrix, full_matrix, quick_matrix
from perfgate_moe.proof.sharing import BYTES_PER_PROCESS, DeviceMemory, count_case_bytes, count_free_bytes
from perfgate_moe.timing.shapes import EXAM_SHAPES, SHAPES

MATRICES = {"quick": quick_matrix, "exam": lambda: exam_matrix(SHAPES[name] for name in EXAM_SHAPES), "full": full_matrix}
SILENCE_S = 120.0
BROKEN = "broken"
DONE = "done"
NOT_JUDGED = "not judged"

Entry = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One case for several implementations; `size` is what it takes of the device's memory, in bytes."""

    case: str
    implementations: tuple[str, ...]
    size: int = 0


def plan_tasks(cases: tuple[LayerCase, ...], implementations: tuple[str, ...], only: str = "", without: str = "") -> list[Task]:
    """The matrix's order: small layers of every kind first, then those of real models."""
    return [
        Task(case=str(case), implementations=implementations, size=count_case_bytes(case))
        for case in cases
        if only in str(case) and not (without and without in str(case))
    ]


def judge(case: str, names: tuple[str, ...], reruns: int, device: str) -> Iterator[Entry | str]:
    """In a worker: an entry for each implementation; BROKEN where a new process must go on.

    The oracle is computed once for all, and once more after each wrong one: what wrote where it must not may have hit the
    reference or the copies of the inputs too, and the next implementation would be blamed.
    """
    from perfgate_moe.errors import NotApplicableError
    from perfgate_moe.exam.conformance import check, prepare
    from perfgate_moe.exam.examiner import is_broken
    from perfgate_moe.exam.implementations import find

    exam = None
    for place, name in enumerate(names):
        try:
            exam = exam or prepare(LayerCase.parse(case), device)
        except RuntimeError as error:
            reason = f"its tensors cannot be made: {_first_line(error)}"
            for left in names[place:]:
                yield {"implementation": left, "case": case, "not_judged": reason}
            return
        entry: Entry = {"implementation": name, "case": case}
        try:
            report = check(find(name), exam, reruns=reruns)
            entry |= {"problems": report.problems, "errors": report.errors and asdict(report.errors)}
        except NotApplicableError as reason:
            entry["not_covered"] = str(reason)
        except RuntimeError as error:
            # An illegal access shows when something waits for the device, which is after the implementation returned.
            entry |= {"problems": [f"raised {type(error).__name__}: {_first_line(error)}"], "errors": None}
        yield entry
        if entry.get("problems"):
            if is_broken(device):
                yield BROKEN
                return
            exam = None  # before the next is made, for the memory has room for one


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason"])[0]


def serve(pipe: Connection, reruns: int, device: str) -> None:
    """A worker's life: answer tasks until the other end closes."""
    import torch

    while True:
        try:
            case, names = pipe.recv()
        except EOFError:
            return
        for answer in judge(case, names, reruns, device):
            pipe.send(answer)
            if answer == BROKEN:
                return
        torch.cuda.empty_cache()
        pipe.send(DONE)


class Worker:
    """A process that answers tasks, and its successors."""

    def __init__(self, reruns: int, device: str) -> None:
        self._options = (reruns, device)
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=serve, args=(far, *self._options), daemon=True)
        self._process.start()
        far.close()

    def close(self) -> None:
        """End the process, whatever it does, for good: a task that it was at gets no more entries."""
        self._is_closed = True
        self._process.kill()

    def _restart(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._start()

    def ask(self, task: Task) -> Iterator[Entry]:
        """An entry for each implementation of the task, in order, however many processes end over it."""
        left = list(task.implementations)
        while left:
            self._pipe.send((task.case, tuple(left)))
            while (answer := self._receive()) != DONE:
                if isinstance(answer, dict):
                    left.pop(0)
                    yield answer
                    continue
                if self._is_closed:
                    return
                self._restart()
                if answer != BROKEN:
                    yield {"implementation": left.pop(0), "case": task.case, "problems": [answer], "errors": None}
                break
            else:
                return

    def _receive(self) -> Entry | str:
        """What the process says, or how it ended."""
        if not self._pipe.poll(SILENCE_S):
            return f"no answer within {SILENCE_S:.0f} s: it hangs"
        try:
            answer: Entry | str = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return f"its process ended with {self._process.exitcode}"
        return answer


def work(worker: Worker, tasks: deque[Task], memory: DeviceMemory, answers: Queue[list[Entry]]) -> None:
    """A thread's life: hand tasks to one worker until none is left."""
    while True:
        try:
            task = tasks.popleft()
        except IndexError:
            return
        with memory.hold(task.size):
            answers.put(list(worker.ask(task)))


def describe_run(reruns: int) -> dict[str, object]:
    """What a file of answers begins with."""
    from perfgate_moe.timing.survey import describe_device

    return {"about": {**describe_device(), "commit": find_commit(), "reruns": reruns, "command": shlex.join(sys.argv)}}


def find_commit() -> str:
    """The commit of this checkout, with `+` after it where files differ from it; `unknown` outside of one."""
    folder = Path(__file__).parent
    asked = ["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]
    try:
        head, changed = (
            subprocess.run(
                ["/usr/bin/env", "git", "-C", str(folder), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", choices=MATRICES, default="quick")
    parser.add_argument("--impl", action="append", required=True)
    parser.add_argument("--only", default="", help="cases whose text contains this")
    parser.add_argument("--without", default="", help="no cases whose text contains this")
    parser.add_argument("--reruns", type=int, default=2, help="of implementations that promise the same bits")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--deadline", type=float, default=1e9, help="collect no result after this many seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    tasks = plan_tasks(MATRICES[options.matrix](), tuple(options.impl), options.only, options.without)
    with options.out.open("w", encoding="utf-8") as out:
        out.write(json.dumps(describe_run(options.reruns)) + "\n")
        workers = [Worker(options.reruns, options.device) for _ in range(min(options.workers, len(tasks)))]
        answers: Queue[list[Entry]] = Queue()
        free_bytes = count_free_bytes(options.device) - (options.workers + 1) * BYTES_PER_PROCESS
        waiting, memory = deque(tasks), DeviceMemory(free_bytes)
        threads = [threading.Thread(target=work, args=(one, waiting, memory, answers), daemon=True) for one in workers]
        for thread in threads:
            thread.start()
        tally: Counter[tuple[str, str]] = Counter()
        answered = 0
        while answered < len(tasks) and (left := options.deadline - (time.perf_counter() - began)) > 0:
            try:
                entries = answers.get(timeout=min(left, 1.0))
            except Empty:
                if not any(thread.is_alive() for thread in threads) and answers.empty():
                    break
                continue
            answered += 1
            for entry in entries:
                out.write(json.dumps(entry) + "\n")
                count(entry, tally)
    waiting.clear()
    for worker in workers:
        worker.close()
    for (name, state), number in sorted(tally.items()):
        print(f"{name:20} {state:12} {number}")
    print(f"{answered} of {len(tasks)} cases, {time.perf_counter() - began:.0f} s")
    is_whole = answered == len(tasks) and not any(state == NOT_JUDGED for _, state in tally)
    sys.exit(0 if is_whole else 3)


def name_state(entry: Entry) -> str:
    """What became of a case: for want of memory it is not judged, and says nothing of an implementation."""
    if "not_judged" in entry:
        return NOT_JUDGED
    return "not covered" if "not_covered" in entry else "wrong" if entry["problems"] else "sound"


def count(entry: Entry, tally: Counter[tuple[str, str]]) -> None:
    """Add an entry to the tally, and tell of the first few wrong ones of each implementation."""
    name = str(entry["implementation"])
    state = name_state(entry)
    tally[name, state] += 1
    if state == "wrong" and tally[name, state] <= 6:
        print(name, entry["case"], entry["problems"], flush=True)


if __name__ == "__main__":
    main()
