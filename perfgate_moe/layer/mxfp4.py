"""The layer with 4-bit weights (MXFP4) in bricks, unpacked and scaled in registers; `slots`, deterministic.

A weight times its scale is an exact number of 16 bits, so the products are those of a layer with 16-bit weights that reads a
quarter of the bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.align import align
from perfgate_moe.layer.bricks import BRICK, Bricks, LaidOut, brick_product, require_order
from perfgate_moe.layer.combine import launch_sum
from perfgate_moe.layer.programs import begin, gate_up_rows, slots_of, store_activated, store_slots, tile_of
from perfgate_moe.layer.tiles import TilePlan, Tiles, has_warpgroups


@triton.jit
def mxfp4_gate_up_product(
    hidden: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    inner: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
    DIRECT: tl.constexpr,
    EVEN_K: tl.constexpr,
    FOLDED: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `inner` [blocks * BLOCK_M, I], sorted by expert: activation(hidden @ gate_up + bias).

    With DIRECT block b is slot b alone.
    """
    begin(OVERLAP)
    tiles_n = tl.cdiv(2 * I, BLOCK_N)
    tiles_m = slots if DIRECT else tl.load(block_count)
    if tl.program_id(0) >= tiles_m * tiles_n:
        return
    tile_m, tile_n = tile_of(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    expert = tl.load(block_experts + tile_m).to(tl.int64)
    if DIRECT and expert < 0:
        return
    slot, place, is_slot = slots_of(sorted_slots, slots, tile_m, DIRECT, BLOCK_M)
    weight_row = gate_up_rows(tile_n, I, INTERLEAVED, BLOCK_N)
    token = tl.where(is_slot, slot // top_k, 0)
    bricks = expert * tl.cdiv(2 * I, 64) * tl.cdiv(H, 64)
    total = brick_product(
        hidden, token, is_slot, codes + bricks * 2048, scales + bricks * 128, tile_n * (BLOCK_N // 64), H, 2 * I, EVEN_K,
        FOLDED, IN_PAIRS, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    store_activated(
        total, bias, weight_row, expert, inner, place, is_slot, tile_n, I, HAS_BIAS, ALPHA, LIMIT, SHIFT, BLOCK_M, BLOCK_N
    )


@triton.jit
def mxfp4_down_product(
    inner: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    target: tl.tensor,
    topk_weights: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    scaling: tl.tensor,
    HAS_BIAS: tl.constexpr,
    DIRECT: tl.constexpr,
    EVEN_K: tl.constexpr,
    FOLDED: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `target` [M * k, H], one for each slot: router weight times (inner @ down + bias).

    With DIRECT block b is slot b alone.
    """
    begin(OVERLAP)
    tiles_n = tl.cdiv(H, BLOCK_N)
    tiles_m = slots if DIRECT else tl.load(block_count)
    if tl.program_id(0) >= tiles_m * tiles_n:
        return
    tile_m, tile_n = tile_of(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    expert = tl.load(block_experts + tile_m).to(tl.int64)
    if DIRECT and expert < 0:
        return
    slot, place, is_slot = slots_of(sorted_slots, slots, tile_m, DIRECT, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = tl.minimum(columns, H - 1)
    bricks = expert * tl.cdiv(H, 64) * tl.cdiv(I, 64)
    total = brick_product(
        inner, place, is_slot, codes + bricks * 2048, scales + bricks * 128, tile_n * (BLOCK_N // 64), I, H, EVEN_K, FOLDED,
        IN_PAIRS, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    store_slots(
        total, bias, expert, target, topk_weights, slot, is_slot, columns, safe, 1, H, scaling, HAS_BIAS, WEIGHT_ON_INPUT=False,
        ATOMIC=False,
    )  # fmt: skip


def mxfp4_moe(problem: LaidOut, plan: TilePlan, launch: dict[str, bool]) -> Tensor:
    """Run a layer with 4-bit weights on the device of its tensors; returns `problem.out`, wholly written."""
    if any(size % BRICK for tiles in (plan.gate_up, plan.down) for size in (tiles.n, tiles.k)):
        raise NotApplicableError(f"tiles of 4-bit weights are multiples of {BRICK} rows and columns")
    alignment = None if plan.is_direct else align(problem.topk_ids, problem.experts, plan.gate_up.m, launch)
    slot_count, activation, ids = problem.topk_ids.numel(), problem.activation, problem.topk_ids
    order = (ids, ids, ids) if alignment is None else (alignment.slots, alignment.experts, alignment.count)
    blocks = slot_count if alignment is None else alignment.blocks

    first, second = problem.gate_up_bricks, problem.down_bricks
    inner_rows = slot_count if alignment is None else blocks * plan.gate_up.m
    inner = problem.hidden.new_empty((inner_rows, problem.intermediate_size))
    bias = problem.hidden if problem.gate_up_bias is None else problem.gate_up_bias
    gate_up = mxfp4_gate_up_product[(blocks * triton.cdiv(2 * problem.intermediate_size, plan.gate_up.n),)](
        problem.hidden, first.codes, first.scales, bias, inner, *order, slot_count, problem.top_k,
        problem.hidden_size, problem.intermediate_size, INTERLEAVED=activation.interleaved,
        HAS_BIAS=problem.gate_up_bias is not None, ALPHA=activation.alpha, LIMIT=activation.limit or 0.0,
        SHIFT=activation.shift, **_tile_arguments(problem, plan.gate_up, first, is_direct=plan.is_direct), **launch,
    )  # fmt: skip
    partial = problem.hidden.new_empty((slot_count, problem.hidden_size))
    bias = problem.hidden if problem.down_bias is None else problem.down_bias
    down = mxfp4_down_product[(blocks * triton.cdiv(problem.hidden_size, plan.down.n),)](
        inner, second.codes, second.scales, bias, partial, problem.topk_weights, *order, slot_count,
        problem.hidden_size, problem.intermediate_size, problem.routed_scaling, HAS_BIAS=problem.down_bias is not None,
        **_tile_arguments(problem, plan.down, second, is_direct=plan.is_direct), **launch,
    )  # fmt: skip
    if is_in_pairs(problem.hidden):
        for compiled in (gate_up, down):
            require_order(compiled)
    return launch_sum(problem, partial, launch)


def is_in_pairs(hidden: Tensor) -> bool:
    """Whether codes are unpacked two at a time: in bfloat16, by assembly, which Triton's interpreter does not run.

    On Hopper alone: elsewhere the four bytes of a word are no neighbours in the registers, and answers would be wrong.
    """
    return bool(hidden.dtype == torch.bfloat16 and hidden.is_cuda and has_warpgroups(hidden.device))


def _tile_arguments(problem: LaidOut, tiles: Tiles, bricks: Bricks, *, is_direct: bool) -> dict[str, Any]:
    sizes: dict[str, Any] = {"BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "GROUP_M": tiles.group_m}
    sizes |= {"DIRECT": is_direct, "IN_PAIRS": is_in_pairs(problem.hidden), "FOLDED": bricks.is_folded}
    return sizes | {"EVEN_K": bricks.columns % tiles.k == 0, "num_warps": tiles.warps, "num_stages": tiles.stages}
