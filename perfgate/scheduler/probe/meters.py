"""What is metered while one part of the engine runs: instructions, CPU time, and events that cost nothing on a CPU.

A meter is opened for a part and a unit, entered and left around each turn of that part, and closed with the number of units.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import time
from collections import Counter
from importlib import import_module
from typing import Any, Protocol

_REQUESTS = (ord("C") << 24) | (ord("T") << 16)
_DUMP_AT, _START = _REQUESTS + 3, _REQUESTS + 4
_ZERO, _TOGGLE = _REQUESTS + 1, _REQUESTS + 2
_RUNNING = 0x1001
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

    def enter(self) -> None:
        """The metered part begins a turn."""

    def leave(self) -> None:
        """The turn is over."""

    def close(self, label: str, units: int) -> dict[str, float]:
        """What was metered since the last close, a unit; empty where files of callgrind hold it."""


class InstructionMeter:
    """Tells callgrind, under which this process runs, when to collect; each close writes a file with arm and label in it.

    Only the calling thread collects. Raise OSError where there is no valgrind around this process.
    """

    def __init__(self, arm: int) -> None:
        self._arm = arm
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(_CODE)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_void_p)(place)
        if not self._ask(_RUNNING):
            raise OSError("this process does not run under valgrind")
        self._ask(_START)

    def _ask(self, request: int, given: int = 0) -> int:
        words = (ctypes.c_ulong * 6)(request, given)
        return int(self._call(ctypes.addressof(words)))

    def enter(self) -> None:
        """Collect."""
        self._ask(_TOGGLE)

    leave = enter

    def close(self, label: str, units: int) -> dict[str, float]:
        """Write what was collected."""
        text = ctypes.create_string_buffer(f"{self._arm} {label} {units}".encode())
        self._ask(_DUMP_AT, ctypes.addressof(text))
        self._ask(_ZERO)
        return {}


class TimeMeter:
    """CPU time of the calling thread."""

    def __init__(self) -> None:
        self._since_ns = self._sum_ns = 0

    def enter(self) -> None:
        """Note the time."""
        self._since_ns = now_ns()

    def leave(self) -> None:
        """Add what passed."""
        self._sum_ns += now_ns() - self._since_ns

    def close(self, label: str, units: int) -> dict[str, float]:
        """Microseconds a unit."""
        del label
        done, self._sum_ns = self._sum_ns, 0
        return {"cpu_us": done / units / 1e3}


class EventMeter:
    """Counts calls that a CPU hardly feels and a GPU's host does.

    `operators` are operators of torch, each a launch where its tensors are on a GPU. `host_reads` are calls that read the
    values of a tensor or wait for a device: each waits for the GPU where the tensor lies there. `copies` move or copy a tensor,
    or would where it lies elsewhere, `allocations` make one from nothing, `log_records` are lines that a record was made for.
    """

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._is_in = False
        self._modes = (self._make_call_mode(), self._make_operator_mode())
        self._watch_log()
        self._watch_device()

    def enter(self) -> None:
        """Count from here on."""
        for mode in self._modes:
            mode.__enter__()
        self._is_in = True

    def leave(self) -> None:
        """Count no more."""
        self._is_in = False
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)

    def close(self, label: str, units: int) -> dict[str, float]:
        """Events a unit."""
        del label
        done, self._events = self._events, Counter()
        return {name: done[name] / units for name in EVENTS}

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
