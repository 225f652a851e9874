"""Share the cases of an exam among processes, each of which answers one after the other in the environment that is examined.

What runs there is not trusted: a process that dies or stops answering is wrong in the case that it was at, and another one is
asked the rest. Answers come in the order of the cases, so that they do not tell how many processes there were.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import IO, Any, Self

import torch

from perfgate_moe.build.checkout import HangWatch, end_group, read_last_line, start_module
from perfgate_moe.errors import MoeInputError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.examiner import READY, read_object

ANSWER_TIMEOUT_S = 300.0
"""A case that compiles takes seconds; one without an answer for so long hangs."""

LOAD_TIMEOUT_S = 300.0
"""A process that is not ready by then hangs, too: it loads torch and the engine."""

ALL_MEMORY = 1 << 62
"""More bytes than a device has."""

MOST_SHARE = 1e12
"""No error of a right answer is a larger share of its limit."""

MAX_BROKEN = 8
"""A broken environment fails every case; after so many processes that a case has ended, the rest is not asked."""

MAX_PROCESSES = 4
"""Nearly all of an exam's time on a GPU is compiling; with more processes all wait for the same compilers."""

CASES_PER_PROCESS = 16
"""With fewer cases for each, another process takes longer to start than it saves."""

BYTES_PER_PROCESS = 2 << 30
"""What a process holds of a GPU for itself: the CUDA context, libraries, kernels."""

BYTES_PER_WEIGHT = 20
"""Three times E * H * I numbers of 16 bits are held twice (a copy shows whether an implementation wrote to them), and where the
two thirds of the first product are compared, they are copied twice more."""

BYTES_PER_SLOT_VALUE = 8
"""A slot has H + 3 * I values in between, in float64 where one expert takes all of the oracle's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examinee:
    """An implementation by name, the Python and the environment that it runs in, and the torch device that it is asked on."""

    implementation: str
    python: str
    env: Mapping[str, str]
    device: str


class DeviceMemory:
    """A device's memory in bytes, shared by all who ask on it. A case larger than all of it waits until it is alone."""

    def __init__(self, size: int) -> None:
        self._size = self._free = max(size, 1)
        self._change = threading.Condition()

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Within the block so much is taken; waits until it is free."""
        size = min(size, self._size)
        with self._change:
            self._change.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._change:
                self._free += size
                self._change.notify_all()


def count_case_bytes(case: LayerCase) -> int:
    """Upper bound of the memory that a case takes with its oracle, besides what its process holds."""
    return case.E * case.H * case.I * BYTES_PER_WEIGHT + case.M * case.k * (case.H + 3 * case.I) * BYTES_PER_SLOT_VALUE


def count_free_bytes(device: str) -> int:
    """Free memory of a GPU, or what Linux says is available for a CPU. Raise MoeInputError where torch sees no such device."""
    try:
        if torch.empty(0, device=device).is_cuda:
            return int(torch.cuda.mem_get_info(device)[0])
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise MoeInputError(f"--device {device}: torch sees none here ({reason}); give cpu, or one that is here") from None
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def count_processes(cases: Sequence[LayerCase], free_bytes: int, sides: int = 1) -> int:
    """How many processes each of `sides` shares the cases among: by cores, free memory of the device, and number of cases."""
    largest = max(map(count_case_bytes, cases), default=0)
    by_memory = (free_bytes - largest) // (BYTES_PER_PROCESS * sides)
    by_cores = len(os.sched_getaffinity(0)) // sides
    return max(1, min(MAX_PROCESSES, by_cores, by_memory, len(cases) // CASES_PER_PROCESS))


class SharedExam:
    """Cases that are being answered, from entering the context; leaving it ends every process, answered or not.

    Iterating gives an answer to each case, in order: the JSON values of `perfgate_moe.exam.examiner`.
    """

    def __init__(self, examinee: Examinee, cases: Sequence[LayerCase], processes: int, memory: DeviceMemory) -> None:
        self._cases, self._memory = cases, memory
        self._broken: set[int] = set()
        self._examiners = [Examiner(examinee) for _ in range(processes)]
        self._idle: SimpleQueue[Examiner] = SimpleQueue()
        self._pool = ThreadPoolExecutor(processes)
        self._answers: list[Future[dict[str, Any]]] = []

    def __enter__(self) -> Self:
        for examiner in self._examiners:
            self._idle.put(examiner)
        self._answers = [self._pool.submit(self._answer, place) for place in range(len(self._cases))]
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for examiner in self._examiners:
            examiner.stop()
        self._pool.shutdown()
        for examiner in self._examiners:
            examiner.end()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        broken = 0
        for case, future in zip(self._cases, self._answers, strict=True):
            # Those that were asked all the same, by another process, are left out too: what is told hangs on the order alone.
            answer = _leave_out(case) if broken >= MAX_BROKEN else future.result()
            broken += "last" in answer
            yield answer

    def _answer(self, place: int) -> dict[str, Any]:
        case = self._cases[place]
        if sum(other < place for other in tuple(self._broken)) >= MAX_BROKEN:
            return _leave_out(case)
        examiner = self._idle.get()
        try:
            with self._memory.hold(count_case_bytes(case)):
                answer = examiner.ask(str(case))
            if "unposed" in answer:
                # Others on the device took more than was reckoned with: once more, with nothing of ours beside it.
                with self._memory.hold(ALL_MEMORY):
                    answer = examiner.ask(str(case))
        finally:
            self._idle.put(examiner)
        if "last" in answer:
            self._broken.add(place)
        return answer


def _leave_out(case: LayerCase) -> dict[str, Any]:
    reason = f"not asked: {MAX_BROKEN} processes had broken by then"
    return {"case": str(case), "not_covered": reason, "asked_s": 0.0, "answered_s": 0.0}


class Examiner:
    """A process that answers cases, and its successors: the next one starts with the case after the one that ended it."""

    def __init__(self, examinee: Examinee) -> None:
        self._examinee = examinee
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str]
        self._held = contextlib.ExitStack()
        self._is_stopped = False
        self._lock = threading.Lock()

    def ask(self, case: str) -> dict[str, Any]:
        """The answer to a case; `last` is in it where its process answers nothing more. CancelledError once it is stopped."""
        begun = monotonic()
        limit_s = LOAD_TIMEOUT_S if self._process is None else ANSWER_TIMEOUT_S
        process = self._start()
        told = os.fstat(self._errors.fileno()).st_size
        with HangWatch(process, limit_s) as watch:
            answer = self._read_reply(process, case, watch)
            if answer is None:
                process.wait()
        if answer is None:
            problem = watch.verdict or _describe_end(process.returncode, self._errors, told)
            answer = {"case": case, "problems": [problem], "share": 0.0, "error": 0.0, "told": f"WRONG: {problem}"}
            answer |= {"asked_s": 0.0, "answered_s": monotonic() - begun, "last": True}
        if "last" in answer or watch.verdict:
            self.end()
        return answer

    def stop(self) -> None:
        """Kill the process, whatever it does, and start none any more; from any thread."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                end_group(self._process)

    def end(self) -> None:
        """End the process with its children and close what it left; from the thread that asks, or where none does."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            end_group(process)
            with contextlib.suppress(BrokenPipeError):  # of what could not be written to a dead process
                self._held.close()

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            if self._process is None:
                with contextlib.ExitStack() as held:
                    self._errors = held.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
                    self._process = held.enter_context(
                        start_module(self._examinee.python, "perfgate_moe.exam.examiner", self._examinee.env, self._errors)
                    )
                    self._held = held.pop_all()
            return self._process

    def _read_reply(self, process: subprocess.Popen[str], case: str, watch: HangWatch) -> dict[str, Any] | None:
        """What the process answers; None where it ends instead."""
        request = {"implementation": self._examinee.implementation, "device": self._examinee.device, "case": case}
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
        except BrokenPipeError:
            return None
        for line in process.stdout or ():
            answer = read_object(line)
            # Anything else that the working tree's code writes is no answer.
            if _is_answer(answer, case):
                return answer
            if answer == READY and watch.limit_s == LOAD_TIMEOUT_S:
                watch.restart(ANSWER_TIMEOUT_S)
        return None


def _describe_end(code: int, errors: IO[str], told: int) -> str:
    """How a process ended, with the last line that it wrote since a case was put to it."""
    if not code:
        return "its process ended too early"
    errors.seek(told)
    return f"its process ended with {code}: {read_last_line(errors.read())}"


def _is_answer(found: dict[str, Any] | None, case: str) -> bool:
    """Whether this is what the examiner says of a case."""
    if found is None or found.get("case") != case or not all(_is_size(found.get(key)) for key in ("asked_s", "answered_s")):
        return False
    if isinstance(found.get("not_covered"), str):
        return True
    are_numbers = _is_size(found.get("share")) and _is_size(found.get("error"))
    is_told = isinstance(found.get("told"), str) and isinstance(found.get("problems"), list)
    return is_told and bool(are_numbers or found["problems"])


def _is_size(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < MOST_SHARE
