"""Wrong sums, biases, activations and roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from perfgate_moe.exam.mutants.registry import coarse, mutant, run_with
from perfgate_moe.layer import reference
from perfgate_moe.layer.problem import Activation, Problem

BLOCK = 32
DEEP = 1024


def _without_bias(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    del bias
    return rows @ weight.T


def _without_tail(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    whole = rows.shape[1] // BLOCK * BLOCK
    return reference.project(rows[:, :whole], weight[:, :whole], bias)


def _activation_with(**changes: float | bool | None) -> Callable[[Tensor, Activation], Tensor]:
    return lambda rows, activation: reference.activate(rows, replace(activation, **changes))  # type: ignore[arg-type]


@mutant
def skipped_gate_up_tail(problem: Problem) -> Tensor:
    """The first product stops at the last whole block of H."""
    return run_with(problem, gate_up=_without_tail)


@mutant
def skipped_down_tail(problem: Problem) -> Tensor:
    """The second product stops at the last whole block of I."""
    return run_with(problem, down=_without_tail)


@mutant
def no_gate_up_bias(problem: Problem) -> Tensor:
    """The first bias is forgotten."""
    return run_with(problem, gate_up=_without_bias)


@mutant
def no_down_bias(problem: Problem) -> Tensor:
    """The second bias is forgotten."""
    return run_with(problem, down=_without_bias)


@mutant
def bias_after_weighting(problem: Problem) -> Tensor:
    """The second bias is added after the router weight instead of before."""
    if problem.down_bias is None:
        return reference.staged(problem)
    heavy = replace(problem, topk_weights=torch.full_like(problem.topk_weights, 1.0 / problem.routed_scaling))
    bias_only = reference.layer(replace(heavy, gate_up=torch.zeros_like(problem.gate_up), gate_up_bias=None), torch.float32)
    weighted = run_with(problem, down=_without_bias).float()
    return reference.cast(problem, weighted + bias_only)


@mutant
def no_clamp(problem: Problem) -> Tensor:
    """Gate and up are not clamped."""
    return run_with(problem, activate=_activation_with(limit=None))


@mutant
def up_not_clamped_below(problem: Problem) -> Tensor:
    """Up is clamped from above only, like gate."""

    def activate(rows: Tensor, activation: Activation) -> Tensor:
        gate, up = reference.split_gate_up(rows, interleaved=activation.interleaved)
        if activation.limit is not None:
            gate, up = gate.clamp(max=activation.limit), up.clamp(max=activation.limit)
        return gate * (gate * activation.alpha).sigmoid() * (up + activation.shift)

    return run_with(problem, activate=activate)


@mutant
def plain_silu(problem: Problem) -> Tensor:
    """Alpha is taken to be 1."""
    return run_with(problem, activate=_activation_with(alpha=1.0))


@mutant
def up_without_one(problem: Problem) -> Tensor:
    """The 1 that gpt-oss adds to up is missing."""
    return run_with(problem, activate=_activation_with(shift=0.0))


@mutant
def wrong_halves(problem: Problem) -> Tensor:
    """Interleaved rows are read as halves and halves as interleaved."""
    return run_with(problem, activate=_activation_with(interleaved=not problem.activation.interleaved))


@mutant
def swapped_gate_up(problem: Problem) -> Tensor:
    """Gate and up change places."""

    def activate(rows: Tensor, activation: Activation) -> Tensor:
        gate, up = reference.split_gate_up(rows, interleaved=activation.interleaved)
        return reference.activate(torch.cat([up, gate], dim=1), replace(activation, interleaved=False))

    return run_with(problem, activate=activate)


@mutant
def bfloat16_combine(problem: Problem) -> Tensor:
    """Slots are summed in bfloat16, rounding after each expert."""

    def combine(out: Tensor, tokens: Tensor, rows: Tensor) -> None:
        out.index_add_(0, tokens, rows)
        out.copy_(out.bfloat16())

    return run_with(problem, combine=combine)


@mutant
def half_sums(problem: Problem) -> Tensor:
    """The first product's partial sums are rounded to the layer's dtype (float16 for float32) after each block."""
    dtype = torch.float16 if problem.hidden.dtype == torch.float32 else problem.hidden.dtype

    def gate_up(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        total = rows.new_zeros(len(rows), len(weight))
        for start in range(0, rows.shape[1], 16):
            total = (total + rows[:, start : start + 16] @ weight[:, start : start + 16].T).to(dtype).float()
        return total if bias is None else total + bias

    return run_with(problem, gate_up=gate_up)


def _cut(bits: int) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """A product of float32 operands whose last mantissa bits are cut off."""

    def cut(tensor: Tensor) -> Tensor:
        return (tensor.contiguous().view(torch.int32) >> bits << bits).view(torch.float32)

    return lambda rows, weight, bias: reference.project(cut(rows), cut(weight), bias)


@mutant
def short_mantissa(problem: Problem) -> Tensor:
    """Float32 operands are cut to the 10 mantissa bits of tf32; 16-bit ones to the 3 of an 8-bit float."""
    product = _cut(13 if problem.hidden.dtype == torch.float32 else 20)
    return run_with(problem, gate_up=product, down=product)


@mutant
def split_operands(problem: Problem) -> Tensor:
    """Float32 operands are carried as two bfloat16 halves, which keeps 15 mantissa bits; 16-bit operands are as they were."""
    return run_with(problem, gate_up=_cut(8), down=_cut(8))


@mutant
def float16_overflow(problem: Problem) -> Tensor:
    """The intermediate is stored as float16 after a scaling that the next kernel takes back."""

    def store(tensor: Tensor) -> Tensor:
        return (tensor * 2048).half().float() / 2048

    return run_with(problem, store=store)


@mutant
def pairwise_sums_in_16_bits(problem: Problem) -> Tensor:
    """Slots are summed in pairs, and each sum is rounded to the layer's dtype."""
    rows = [_one_slot(problem, slot) for slot in range(problem.top_k)]
    while len(rows) > 1:
        rows = [sum(rows[start + 1 : start + 2], rows[start]) for start in range(0, len(rows), 2)]
    return rows[0]


def _one_slot(problem: Problem, slot: int) -> Tensor:
    """What one slot of each token adds, in the layer's dtype."""
    ids = torch.full_like(problem.topk_ids, -1)
    ids[:, slot] = problem.topk_ids[:, slot]
    return reference.staged(replace(problem, topk_ids=ids))


@mutant
def rounded_alpha(problem: Problem) -> Tensor:
    """Alpha passes through bfloat16."""
    alpha = float(torch.tensor(problem.activation.alpha).bfloat16())
    return run_with(problem, activate=_activation_with(alpha=alpha))


@mutant
def inner_columns_to_1024(problem: Problem) -> Tensor:
    """The second product stops at column 1,024 of the intermediate rows."""
    return run_with(problem, down=lambda rows, weight, bias: reference.project(rows[:, :DEEP], weight[:, :DEEP], bias))


@mutant
def cut_off_answer(problem: Problem) -> Tensor:
    """The last bits of the answer are cut off instead of rounded."""

    def store(tensor: Tensor) -> Tensor:
        return tensor.to(problem.hidden.dtype).float()

    exact = reference.layer(problem, torch.float32, reference.Steps(store=store))
    answer = exact.to(problem.hidden.dtype)
    words = answer.view(torch.int16 if answer.element_size() == 2 else torch.int32)
    # One less of sign and magnitude is the next number towards zero.
    return torch.where(answer.float().abs() > exact.abs(), (words - 1).view(answer.dtype), answer)


@coarse
def halves_of_the_second_product_in_16_bits(problem: Problem) -> Tensor:
    """Each half of the second product's terms is summed by itself and rounded to the layer's dtype before both are added."""

    def down(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        half = rows.shape[1] // 2
        halves = rows[:, :half] @ weight[:, :half].T, reference.project(rows[:, half:], weight[:, half:], bias)
        first, second = (part.to(problem.hidden.dtype).float() for part in halves)
        return first + second

    return run_with(problem, down=down)
