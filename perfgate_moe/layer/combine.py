"""Ways to bring a token's experts together: a fixed-order sum of slots, and a down product that owns its token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.programs import begin, in_eighths

SUM_COLUMNS = 1024


@triton.jit
def sum_slots(
    partial: tl.tensor,
    topk_ids: tl.tensor,
    out: tl.tensor,
    H: tl.tensor,
    TOP_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Row of `out` [M, H] = float32 sum of its k rows of `partial` [M * k, H], first slot first; no read without an expert."""
    begin(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < H
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    for position in tl.static_range(TOP_K):
        slot = token * TOP_K + position
        has_expert = tl.load(topk_ids + slot) >= 0
        total += tl.load(partial + slot * H + columns, mask=is_column & has_expert, other=0.0).to(tl.float32)
    tl.store(out + token * H + columns, total.to(out.dtype.element_ty), mask=is_column)


def launch_sum(problem: Problem, partial: Tensor, launch: dict[str, bool]) -> Tensor:
    """Sum the slots in `partial` [M * k, H] into the problem's `out`, which it returns."""
    grid = (problem.tokens, triton.cdiv(problem.hidden_size, SUM_COLUMNS))
    sum_slots[grid](
        partial, problem.topk_ids, problem.out, problem.hidden_size, TOP_K=problem.top_k, BLOCK_N=SUM_COLUMNS, num_warps=4,
        **launch,
    )  # fmt: skip
    return problem.out


@triton.jit
def own_down_product(
    inner: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    topk_weights: tl.tensor,
    topk_ids: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    scaling: tl.tensor,
    TOP_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_ON_INPUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    EIGHTHS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """One token's columns of the answer, start to finish: no alignment, no scratch, no atomics, one store.

    The loop runs through the token's experts without a seam: expert j occupies row j of the matrix tile (ROWS >= k) while its
    turn lasts, the other rows are zero, and the rows are weighted and summed at the end.
    """
    begin(OVERLAP)
    if EIGHTHS:
        I = in_eighths(I)
    token = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    ks = tl.arange(0, BLOCK_K)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = tl.minimum(columns, H - 1).to(tl.int64)
    steps = tl.cdiv(I, BLOCK_K)
    total = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    for step in range(TOP_K * steps):
        position = step // steps
        k = (step % steps) * BLOCK_K + ks
        slot = token * TOP_K + position
        expert = tl.load(topk_ids + slot)
        has_expert = expert >= 0
        is_k = (k < I) & has_expert
        where = tl.where(has_expert, expert, 0).to(tl.int64)
        a_mask = (rows[:, None] == position) & is_k[None, :]
        a = tl.load(inner + slot.to(tl.int64) * I + k[None, :] + rows[:, None] * 0, mask=a_mask, other=0.0)
        b_tile = weight + where * H * I + safe[None, :] * I + k[:, None]
        b = tl.load(b_tile) if EVEN_K else tl.load(b_tile, mask=k[:, None] < I, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    expert = tl.load(topk_ids + token * TOP_K + rows, mask=rows < TOP_K, other=-1)
    if HAS_BIAS:
        where = tl.where(expert >= 0, expert, 0).to(tl.int64)
        total += tl.load(bias + where[:, None] * H + safe[None, :]).to(tl.float32)
    if WEIGHT_ON_INPUT:
        router = tl.where(expert >= 0, scaling, 0.0)
    else:
        router = tl.load(topk_weights + token * TOP_K + rows, mask=expert >= 0, other=0.0) * scaling
    answer = tl.sum(tl.where(expert[:, None] >= 0, total * router[:, None], 0.0), axis=0)
    tl.store(out + token.to(tl.int64) * H + columns, answer.to(out.dtype.element_ty), mask=columns < H)
