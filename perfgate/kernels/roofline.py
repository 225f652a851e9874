"""The least time that a layer can take on a card, from what it must read and multiply; and what the card can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from perfgate.kernels.problem import Problem
from perfgate.kernels.timing import replay_ms

COPY_ELEMENTS = 1 << 30
PRODUCT_SIZE = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes per second of a copy (read plus write), and flop per second of a large 16-bit product, both measured."""

    bytes_per_s: float
    flop_per_s: float


def floor_us(layers: Sequence[Problem], limits: Ceilings) -> float:
    """Roofline of one layer in microseconds, mean over problems: each needed weight and activation once, each product once."""
    total = 0.0
    for problem in layers:
        active = int(problem.topk_ids.unique().numel())
        weights = active * 3 * problem.intermediate_size * problem.hidden_size * problem.gate_up.element_size() / problem.pack
        traffic = weights + 2 * problem.hidden.numel() * problem.hidden.element_size()
        flop = 6 * problem.topk_ids.numel() * problem.intermediate_size * problem.hidden_size
        total += max(traffic / limits.bytes_per_s, flop / limits.flop_per_s)
    return total * 1e6 / len(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Anything that can be replayed."""

    replay: Callable[[], object]


def measure_ceilings() -> Ceilings:
    """What this card does at best, on random data: the data decide the power, and the power the clock."""
    source = torch.randn(COPY_ELEMENTS, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    a, b = torch.randn(2, PRODUCT_SIZE, PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16).unbind()
    copy_ms = min(replay_ms(_Call(replay=lambda: target.copy_(source)), 5) for _ in range(3))
    product_ms = min(replay_ms(_Call(replay=lambda: a @ b), 5) for _ in range(3))
    return Ceilings(
        bytes_per_s=2 * source.numel() * source.element_size() / copy_ms * 1e3,
        flop_per_s=2 * PRODUCT_SIZE**3 / product_ms * 1e3,
    )
