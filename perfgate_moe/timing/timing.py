"""Time whole layers over rotating weights: as CUDA graphs by CUDA events, or, without a GPU, called one after the other."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import triton
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import Problem

SAMPLE_MS = 4.0
LayerFunction = Callable[[Problem], Tensor]


class Replayable(Protocol):
    """Work that can be done again: a CUDA graph, or a sequence of calls."""

    def replay(self) -> object:
        """Do the work, or put it into the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """A layer run on each problem by turns, where there are no graphs."""

    run: LayerFunction
    problems: Sequence[Problem]

    def replay(self) -> None:
        """Run them all."""
        for problem in self.problems:
            self.run(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A CUDA graph with the problems whose memory it reads and writes: freed memory would be given to something else."""

    graph: torch.cuda.CUDAGraph
    problems: Sequence[Problem]

    def replay(self) -> None:
        """Put the work into the stream."""
        self.graph.replay()


class Clock:
    """Seconds of the device's own work: CUDA events where there is a GPU, so that launching costs nothing; else the CPU's.

    The sum of short intervals: an event's distance from a far one is a float32 and would lose microseconds.
    """

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._last: torch.cuda.Event | None = None

    def __call__(self) -> float:
        """Wait for the device, and read the clock."""
        if not torch.cuda.is_available():
            return time.perf_counter()
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        now.synchronize()
        if self._last is not None:
            self._elapsed_s += self._last.elapsed_time(now) / 1e3
        self._last = now
        return self._elapsed_s


def record(run: LayerFunction, problems: Sequence[Problem]) -> Replayable:
    """The layer on each problem, ready to be replayed: a CUDA graph for problems on a GPU."""
    return capture(run, problems) if problems[0].hidden.is_cuda else Calls(run=run, problems=problems)


def capture(run: LayerFunction, problems: Sequence[Problem]) -> Captured:
    """A graph that runs the layer once on each problem, warmed up on a side stream first."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for problem in problems[:2]:
            run(problem)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for problem in problems:
            run(problem)
    return Captured(graph=graph, problems=problems)


def replay_ms(graph: Replayable, replays: int) -> float:
    """Milliseconds of one replay, as the mean of `replays` back to back."""
    clock = Clock()
    begun_s = clock()
    for _ in range(replays):
        graph.replay()
    return (clock() - begun_s) * 1e3 / replays


def count_replays(graph: Replayable) -> int:
    """How many replays make a sample of about SAMPLE_MS."""
    return max(1, int(SAMPLE_MS / max(replay_ms(graph, 2), 1e-3)))


def profile_us(run: LayerFunction, problems: Sequence[Problem]) -> dict[str, float]:
    """Microseconds per layer of each kernel by name, eagerly launched: for diagnosis, not for comparison."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for problem in problems:
            run(problem)
        torch.cuda.synchronize()
    return {event.key[:60]: event.self_device_time_total / len(problems) for event in recorded.key_averages()}


def quick_us(run: LayerFunction, problems: Sequence[Problem]) -> float:
    """Microseconds per layer, good enough to rank plans; infinite for one that cannot be compiled or does not fit.

    A compiler pass that fails, and SGLang's refusal of tiles, are a RuntimeError and an AssertionError. So is a fault of the
    device, after which every other plan fails as well, and the answer's check.
    """
    try:
        graph = record(run, problems)
    except (triton.errors.TritonError, RuntimeError, AssertionError, NotApplicableError):
        return float("inf")
    replays = count_replays(graph)
    return statistics.median(replay_ms(graph, replays) for _ in range(3)) * 1e3 / len(problems)


def interleave(
    graphs: Mapping[str, Replayable], layers: int, rounds: int, seed: int, replays: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Microseconds per layer of each graph, one sample per round, in a new random order each round.

    `replays` are those of a sample, which ranks that wait for each other have to agree upon; else they are counted here.
    """
    order = list(graphs)
    draw = random.Random(seed)  # noqa: S311 - an order, not a secret
    counts = replays or {name: count_replays(graph) for name, graph in graphs.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            samples[name].append(replay_ms(graphs[name], counts[name]) * 1e3 / layers)
    return samples


def ratio_interval(base: Sequence[float], candidate: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Median of base / candidate over rounds (above one: candidate faster) with a 95 % bootstrap interval."""
    ratios = np.asarray(base) / np.asarray(candidate)
    draws = np.random.default_rng(seed).choice(ratios, size=(2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)
