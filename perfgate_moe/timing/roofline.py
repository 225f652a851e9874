"""The least time that a layer can take on a card, from what it must read and multiply; and what the card can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.reference import FLOAT8
from perfgate_moe.timing.timing import replay_ms

COPY_ELEMENTS = 1 << 30
PRODUCT_SIZE = 8192
# Of a CPU: beyond its caches, and done in a second.
CPU_COPY_ELEMENTS = 1 << 25
CPU_PRODUCT_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes per second of a copy (read plus write), and flop per second of a large product in 16 and in 8 bits, all measured.

    The 8-bit one is None where it was not asked for: only layers with 8-bit weights need it.
    """

    bytes_per_s: float
    flop_per_s: float
    fp8_flop_per_s: float | None = None


def floor_us(layers: Sequence[Problem], limits: Ceilings) -> float:
    """Roofline of one layer in microseconds, mean over problems: each needed weight and activation once, each product once.

    Weights count with their scales. Products of 8-bit weights are compared with the 8-bit ceiling where it was measured, those
    of 4-bit ones, which are unpacked first, against the 16-bit one.
    """
    total = 0.0
    for problem in layers:
        active = int(problem.topk_ids.unique().numel())
        traffic = active * expert_bytes(problem) + 2 * problem.hidden.numel() * problem.hidden.element_size()
        flop = 6 * problem.topk_ids.numel() * problem.intermediate_size * problem.hidden_size
        flop_per_s = limits.flop_per_s if problem.quant != "fp8" else limits.fp8_flop_per_s or limits.flop_per_s
        total += max(traffic / limits.bytes_per_s, flop / flop_per_s)
    return total * 1e6 / len(layers)


def expert_bytes(problem: Problem) -> float:
    """Bytes of one expert's weights and scales."""
    tensors = [problem.gate_up, problem.down]
    if problem.scales is not None:
        tensors += [problem.scales.gate_up, problem.scales.down]
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors)) / problem.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayedCall:
    """Anything that can be replayed."""

    replay: Callable[[], object]


def measure_ceilings(device: str = "cuda", *, has_fp8: bool = False) -> Ceilings:
    """What this device does at best, on random data: the data decide the power, and the power the clock."""
    elements, side = (CPU_COPY_ELEMENTS, CPU_PRODUCT_SIZE) if device == "cpu" else (COPY_ELEMENTS, PRODUCT_SIZE)
    source = torch.randn(elements, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    a, b = torch.randn(2, side, side, device=device, dtype=torch.bfloat16).unbind()
    copy_ms = min(replay_ms(_ReplayedCall(replay=lambda: target.copy_(source)), 5) for _ in range(3))
    product_ms = min(replay_ms(_ReplayedCall(replay=lambda: a @ b), 5) for _ in range(3))
    return Ceilings(
        bytes_per_s=2 * source.numel() * source.element_size() / copy_ms * 1e3,
        flop_per_s=2 * side**3 / product_ms * 1e3,
        fp8_flop_per_s=_fp8_flop_per_s(a.to(FLOAT8), b.to(FLOAT8)) if has_fp8 else None,
    )


def _fp8_flop_per_s(a: Tensor, b: Tensor) -> float:
    """Flop per second of torch's 8-bit product with one scale for each operand."""
    one = torch.ones((), device=a.device)

    def multiply() -> Tensor:
        return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001

    multiply()  # chooses an algorithm
    product_ms = min(replay_ms(_ReplayedCall(replay=multiply), 5) for _ in range(3))
    return float(2 * PRODUCT_SIZE**3 / product_ms * 1e3)
