"""The spin kernel in a served model: its state on the device, what one call costs, and what all calls spent."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from perfgate.errors import ServerError
from perfgate.serving.injection.injection_log import PERIOD, log_injected

LENGTH, CALLS, SPENT = range(3)
"""Where the state, three int64 in device memory, keeps the wanted nanoseconds, the calls made and the nanoseconds spent."""


@triton.jit  # type: ignore[untyped-decorator]
def spin(state: tl.tensor) -> None:
    """Wait until the GPU's own clock of nanoseconds has moved on by the wanted length, and count what it was.

    The length is read when the kernel runs, so a captured graph follows a change of it. The clock does not depend on the
    frequency of the multiprocessors.
    """
    wanted = tl.load(state)
    begun = globaltimer()
    now = begun
    while now - begun < wanted:
        now = globaltimer()
    tl.atomic_add(state + 1, 1)
    tl.atomic_add(state + 2, now - begun)


TRIALS, REPEATS = 200, 9


class Spin:
    """One device's spin for an injection of this `kind`. Everything on it is made here, before SGLang captures its graphs."""

    def __init__(self, *, kind: str, device: str, index: int, microseconds: float) -> None:
        """Compile the kernel, measure what a call costs beside its length. Raise ServerError where there is no CUDA device."""
        if device != "cuda":
            raise ServerError(
                f"perfgate: the {kind} injection needs a CUDA device, this server runs on {device}; use host or step"
            )
        self._kind = kind
        self._place = torch.device("cuda", index)
        with torch.cuda.device(self._place):
            self._state = torch.zeros(3, dtype=torch.int64, device=self._place)
            self._seen = torch.zeros(3, dtype=torch.int64, pin_memory=True)
            self._reader = torch.cuda.Stream()
            self._state[LENGTH] = round(microseconds * 1000)
            self.overhead_us = self._measure_overhead()
            self._state[CALLS:] = 0
            torch.cuda.synchronize()
        self._steps = 0
        self._told = (0, 0)

    def enqueue(self) -> None:
        """Put one spin behind what the current stream has to do."""
        spin[(1,)](self._state, num_warps=1)

    def count_step(self) -> None:
        """Count a batch, and log every hundred what its spins spent."""
        self._steps += 1
        if self._steps % PERIOD:
            return
        # Copied on a stream of its own and read a hundred steps later, so that the scheduler does not wait for it.
        calls, spent = int(self._seen[CALLS]), int(self._seen[SPENT])
        with torch.cuda.stream(self._reader):
            self._seen.copy_(self._state, non_blocking=True)
        # The first time there is nothing to read, the second it counts what happened before any step: warm-up and capture.
        if self._steps > 2 * PERIOD:
            self._tell(calls - self._told[0], (spent - self._told[1]) / 1000)
        self._told = (calls, spent)

    def _tell(self, calls: int, spent_us: float) -> None:
        log_injected(
            self._kind,
            injected_us=spent_us + calls * self.overhead_us,
            calls=calls,
            spent_us=round(spent_us, 3),
            overhead_us=round(self.overhead_us, 4),
        )

    def _measure_overhead(self) -> float:
        """Microseconds that a call in a graph takes beside its spin, by CUDA events around a replay of many."""
        self.enqueue()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(TRIALS):
                self.enqueue()
        graph.replay()
        torch.cuda.synchronize()
        # Another server that loads its weights on this GPU makes one replay in eight three times as slow, and none faster:
        # benchmarks/h100/injection/spin_overhead.txt. One that computes all the while makes all of them slow.
        return min(self._time_replay(graph) for _ in range(REPEATS))

    def _time_replay(self, graph: torch.cuda.CUDAGraph) -> float:
        before = self._state.cpu()
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        made = self._state.cpu() - before
        return _per_call(begun.elapsed_time(ended) * 1000, made)


def _per_call(elapsed_us: float, made: Any) -> float:
    """What is left of the time of `made` calls beyond what they spun, for each."""
    return max(0.0, (elapsed_us - int(made[SPENT]) / 1000) / int(made[CALLS]))
