"""Time whole layers as CUDA graphs over rotating weights, in interleaved rounds with an A/A control."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from perfgate.kernels.problem import Problem

SAMPLE_MS = 4.0
Run = Callable[[Problem], Tensor]


def capture(run: Run, problems: Sequence[Problem]) -> torch.cuda.CUDAGraph:
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
    return graph


def replay_ms(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Milliseconds of one replay, as the mean of `replays` back to back."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / replays


def profile_us(run: Run, problems: Sequence[Problem]) -> dict[str, float]:
    """Microseconds per layer of each kernel by name, eagerly launched: for diagnosis, not for comparison."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for problem in problems:
            run(problem)
        torch.cuda.synchronize()
    return {event.key[:60]: event.self_device_time_total / len(problems) for event in recorded.key_averages()}


def quick_us(run: Run, problems: Sequence[Problem]) -> float:
    """Microseconds per layer, good enough to rank plans; infinite when the plan does not fit the device."""
    import triton

    try:
        graph = capture(run, problems)
    except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError):
        return float("inf")
    one = replay_ms(graph, 1)
    replays = max(1, int(SAMPLE_MS / max(one, 1e-3)))
    return statistics.median(replay_ms(graph, replays) for _ in range(3)) * 1e3 / len(problems)


def interleave(graphs: Mapping[str, torch.cuda.CUDAGraph], layers: int, rounds: int, seed: int) -> dict[str, list[float]]:
    """Microseconds per layer of each graph, one sample per round, in a new random order each round."""
    order = list(graphs)
    draw = random.Random(seed)  # noqa: S311 - an order, not a secret
    replays = {name: max(1, int(SAMPLE_MS / replay_ms(graph, 2))) for name, graph in graphs.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            samples[name].append(replay_ms(graphs[name], replays[name]) * 1e3 / layers)
    return samples


def ratio_interval(base: Sequence[float], candidate: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Median of base / candidate over rounds (above one: candidate faster) with a 95 % bootstrap interval."""
    ratios = np.asarray(base) / np.asarray(candidate)
    draws = np.random.default_rng(seed).choice(ratios, size=(2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)
