"""What is metered while one part of the engine runs: instructions, CPU time, and events that cost nothing on a CPU.

A meter is opened for a window of so many units, entered and left around each turn of a part, and closed.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import mmap
import os
import re
import time
from collections import Counter
from importlib import import_module
from typing import Any, Protocol

_REQUESTS = (ord("C") << 24) | (ord("T") << 16)
_TOGGLE, _START = _REQUESTS + 2, _REQUESTS + 4
_RUNNING, _COMMAND = 0x1001, 0x1202
_STATUS = b"status internal"  # what callgrind_control asks for
_MOST_BYTES = 1 << 20  # of one answer: it lists the functions that are being called
_COLLECTED = re.compile(rb"(?ms)^current-tid: (\d+)$.*?^events-\1: (\d+)$")
# valgrind.h, amd64: rax points to six words, rdx holds the answer; four rotations of rdi and `xchg rbx, rbx` mark the request.
_CODE = bytes.fromhex("4889f831d248c1c70348c1c70d48c1c73d48c1c7334887db4889d0c3")

_CALLS = {
    "host_reads": frozenset(
        ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__")
    ),
    "copies": frozenset(("to", "cuda", "pin_memory", "clone", "copy_")),
    "allocations": frozenset(
        (
            "arange",
            "empty",
            "empty_like",
            "full",
            "full_like",
            "new_empty",
            "new_zeros",
            "ones",
            "tensor",
            "zeros",
            "zeros_like",
        )
    ),
}
"""The calls of torch that are counted, by their names: on a CPU many of them do nothing, so that no operator tells of them."""

EVENTS = ("operators", *_CALLS, "log_records")

now_ns = time.thread_time_ns


class Meter(Protocol):
    """One kind of metering."""

    def open(self, units: int) -> None:
        """A window begins that will have so many units."""

    def enter(self, part: str) -> None:
        """A part begins a turn."""

    def leave(self, part: str) -> None:
        """The turn is over."""

    def close(self) -> dict[str, dict[str, float]]:
        """What each part was metered for in the window, a unit."""


class InstructionMeter:
    """Asks callgrind, under which this process runs, how many instructions each turn took.

    Only the calling thread collects. The answer comes in callgrind's `log`, which the processes of all arms share. Raise
    OSError where there is no valgrind around this process, or where it does not answer.
    """

    def __init__(self, log: str) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CODE)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_void_p)(place)
        self._status = ctypes.create_string_buffer(_STATUS)
        self._units, self._sums = 0, Counter[str]()
        if not self._ask(_RUNNING):
            raise OSError("this process does not run under valgrind")
        self._log = os.open(log, os.O_RDONLY)
        self._ask(_START)
        self._read = self._count()

    def _ask(self, request: int, given: int = 0) -> int:
        words = (ctypes.c_ulong * 6)(request, given)
        return int(self._call(ctypes.addressof(words)))

    def _count(self) -> int:
        """What was collected so far."""
        fcntl.flock(self._log, fcntl.LOCK_EX)
        try:
            os.lseek(self._log, 0, os.SEEK_END)
            self._ask(_COMMAND, ctypes.addressof(self._status))
            found = _COLLECTED.search(os.read(self._log, _MOST_BYTES))
        finally:
            fcntl.flock(self._log, fcntl.LOCK_UN)
        if found is None:
            raise OSError("callgrind does not say what it counted; is this valgrind 3.15 or newer?")
        return int(found[2])

    def open(self, units: int) -> None:
        """Begin at nothing."""
        self._units, self._sums = units, Counter()

    def enter(self, part: str) -> None:
        """Collect."""
        del part
        self._ask(_TOGGLE)

    def leave(self, part: str) -> None:
        """Add what was collected since the last turn."""
        self._ask(_TOGGLE)
        before, self._read = self._read, self._count()
        self._sums[part] += self._read - before

    def close(self) -> dict[str, dict[str, float]]:
        """Instructions a unit."""
        return {part: {"instructions": collected / self._units} for part, collected in self._sums.items()}


class TimeMeter:
    """CPU time of the calling thread."""

    def __init__(self) -> None:
        self._since_ns, self._units = 0, 0
        self._sums_ns: Counter[str] = Counter()

    def open(self, units: int) -> None:
        """Begin at nothing."""
        self._units, self._sums_ns = units, Counter()

    def enter(self, part: str) -> None:
        """Note the time."""
        del part
        self._since_ns = now_ns()

    def leave(self, part: str) -> None:
        """Add what passed."""
        self._sums_ns[part] += now_ns() - self._since_ns

    def close(self) -> dict[str, dict[str, float]]:
        """Microseconds a unit."""
        return {part: {"cpu_us": sum_ns / self._units / 1e3} for part, sum_ns in self._sums_ns.items()}


class EventMeter:
    """Counts calls that a CPU hardly feels and a GPU's host does.

    `operators` are operators of torch, each a launch where its tensors are on a GPU. `host_reads` are calls that read the
    values of a tensor or wait for a device: each waits for the GPU where the tensor lies there. `copies` move or copy a tensor,
    or would where it lies elsewhere, `allocations` make one from nothing, `log_records` are lines that a record was made for.
    """

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._by_part: dict[str, Counter[str]] = {}
        self._units = 0
        self._is_in = False
        self._modes = (self._make_call_mode(), self._make_operator_mode())
        self._watch_log()
        self._watch_device()

    def open(self, units: int) -> None:
        """Begin at nothing."""
        self._units, self._by_part = units, {}

    def enter(self, part: str) -> None:
        """Count for the part from here on."""
        self._events = self._by_part.setdefault(part, Counter())
        for mode in self._modes:
            mode.__enter__()
        self._is_in = True

    def leave(self, part: str) -> None:
        """Count no more."""
        del part
        self._is_in = False
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)

    def close(self) -> dict[str, dict[str, float]]:
        """Events a unit."""
        return {part: {name: found[name] / self._units for name in EVENTS} for part, found in self._by_part.items()}

    def _make_call_mode(self) -> Any:
        base = import_module("torch.overrides").TorchFunctionMode

        def count(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            name = getattr(function, "__name__", "")
            for event, names in _CALLS.items():
                self._events[event] += name in names
            return function(*args, **(kwargs or {}))

        return type("CallMode", (base,), {"__torch_function__": count})()

    def _make_operator_mode(self) -> Any:
        base = import_module("torch.utils._python_dispatch").TorchDispatchMode

        def count(_: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            self._events["operators"] += 1
            return operator(*args, **(kwargs or {}))

        return type("OperatorMode", (base,), {"__torch_dispatch__": count})()

    def _watch_log(self) -> None:
        make = logging.getLogRecordFactory()

        def count(*given: Any, **named: Any) -> logging.LogRecord:
            self._events["log_records"] += self._is_in
            return make(*given, **named)

        logging.setLogRecordFactory(count)

    def _watch_device(self) -> None:
        torch = import_module("torch")

        def count(*_: Any, **__: Any) -> None:
            self._events["host_reads"] += self._is_in

        # None of them waits for anything where there is no GPU; that of torch.cuda would raise.
        for holder in (torch.cpu, torch.cpu.Event, torch.cuda):
            holder.synchronize = count
