"""The layer with 8-bit weights in blocks of 128 by 128, and activations rounded by groups of 128: `slots`, deterministic.

Hidden states are rounded once per token, intermediate rows once per slot, both by the same kernel; each step of 128 columns of
a product is scaled in float32 and added to a float32 sum, so that the 8-bit matrix units never add across scales.
"""

# ruff: noqa: PLR0913, PLR0917 - a kernel's arguments are its interface, and its branches are compile-time
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from perfgate.kernels.align import align
from perfgate.kernels.combine import launch_sum
from perfgate.kernels.epilogues import gate_up_rows, store_activated, store_slots
from perfgate.kernels.fp8_rounding import round_to_codes
from perfgate.kernels.problem import SCALE_BLOCK, BlockScales, NotApplicableError, Problem
from perfgate.kernels.schedule import begin, tile_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Tiles:
    """The cut of both products; the depth of a step is the scales' block."""

    m: int
    n: int
    group_m: int = 1
    warps: int = 4
    stages: int = 4


FEW_ROWS = Fp8Tiles(m=16, n=128)
MANY_ROWS = Fp8Tiles(m=64, n=128, group_m=8)
TILES = (FEW_ROWS, MANY_ROWS)
MANY_SLOTS_PER_EXPERT = 16


@triton.jit  # type: ignore[untyped-decorator]
def scaled_product(
    codes: tl.tensor,
    row_scales: tl.tensor,
    row: tl.tensor,
    is_row: tl.tensor,
    weight: tl.tensor,
    weight_scales: tl.tensor,
    weight_row: tl.tensor,
    K: tl.tensor,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tensor:
    """Rows of `codes` [., K] times rows of an expert's `weight` [., K], each step scaled by its row's and its block's scale."""
    ks = tl.arange(0, BLOCK)
    groups = tl.cdiv(K, BLOCK)
    a_tile = codes + row.to(tl.int64)[:, None] * K + ks[None, :]
    b_tile = weight + weight_row.to(tl.int64)[None, :] * K + ks[:, None]
    a_scale = row_scales + row.to(tl.int64) * groups
    b_scale = weight_scales + (weight_row // BLOCK) * groups
    total = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    for step in range(groups):
        inside = step * BLOCK + ks < K
        a = tl.load(a_tile, mask=is_row[:, None] & inside[None, :], other=0.0)
        b = tl.load(b_tile, mask=inside[:, None], other=0.0)
        scale = tl.load(a_scale + step, mask=is_row, other=0.0)[:, None] * tl.load(b_scale + step)[None, :]
        total += tl.dot(a, b) * scale
        a_tile += BLOCK
        b_tile += BLOCK
    return total


@triton.jit  # type: ignore[untyped-decorator]
def fp8_gate_up_product(
    codes: tl.tensor,
    row_scales: tl.tensor,
    weight: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    inner: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,  # noqa: E741 - the field's name for the intermediate size
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `inner` [blocks * BLOCK_M, I] in 16 bits, sorted by expert: activation(hidden @ gate_up + bias)."""
    begin(OVERLAP)
    tiles_n = tl.cdiv(2 * I, BLOCK_N)
    tiles_m = tl.load(block_count)
    if tl.program_id(0) >= tiles_m * tiles_n:
        return
    tile_m, tile_n = tile_of(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    expert = tl.load(block_experts + tile_m).to(tl.int64)
    place = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    slot = tl.load(sorted_slots + place)
    is_slot = slot < slots
    weight_row = gate_up_rows(tile_n, I, INTERLEAVED, BLOCK_N)
    scales = weight_scales + expert * tl.cdiv(2 * I, BLOCK) * tl.cdiv(H, BLOCK)
    total = scaled_product(
        codes, row_scales, tl.where(is_slot, slot // top_k, 0), is_slot, weight + expert * 2 * I * H, scales, weight_row, H,
        BLOCK, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_activated(
        total, bias, weight_row, expert, inner, place, is_slot, tile_n, I, HAS_BIAS, ALPHA, LIMIT, SHIFT, BLOCK_M, BLOCK_N
    )


@triton.jit  # type: ignore[untyped-decorator]
def fp8_down_product(
    codes: tl.tensor,
    row_scales: tl.tensor,
    weight: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    target: tl.tensor,
    topk_weights: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,  # noqa: E741 - the field's name for the intermediate size
    scaling: tl.tensor,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `target` [M * k, H], one for each slot: router weight times (inner @ down + bias)."""
    begin(OVERLAP)
    tiles_n = tl.cdiv(H, BLOCK_N)
    tiles_m = tl.load(block_count)
    if tl.program_id(0) >= tiles_m * tiles_n:
        return
    tile_m, tile_n = tile_of(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    expert = tl.load(block_experts + tile_m).to(tl.int64)
    place = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    slot = tl.load(sorted_slots + place)
    is_slot = slot < slots
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = tl.minimum(columns, H - 1)
    scales = weight_scales + expert * tl.cdiv(H, BLOCK) * tl.cdiv(I, BLOCK)
    total = scaled_product(
        codes, row_scales, place, is_slot, weight + expert * H * I, scales, safe, I, BLOCK, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_slots(
        total, bias, expert, target, topk_weights, slot, is_slot, columns, safe, 1, H, scaling, HAS_BIAS, WEIGHT_ON_INPUT=False,
        ATOMIC=False,
    )  # fmt: skip


def choose_tiles(problem: Problem) -> Fp8Tiles:
    """By the mean number of slots per expert: nothing was tuned yet."""
    return MANY_ROWS if problem.topk_ids.numel() > MANY_SLOTS_PER_EXPERT * problem.experts else FEW_ROWS


def fp8_moe(problem: Problem, launch: dict[str, bool], tiles: Fp8Tiles | None = None) -> Tensor:
    """Run a layer with scales on the device of its tensors; returns `problem.out`, wholly written."""
    if not isinstance(problem.scales, BlockScales):
        raise NotApplicableError("fp8 is for layers with block scales")
    tiles = tiles or choose_tiles(problem)
    alignment = align(problem.topk_ids, problem.experts, tiles.m, launch)
    slot_count, activation = problem.topk_ids.numel(), problem.activation
    order = (alignment.slots, alignment.experts, alignment.count)
    sizes: dict[str, Any] = {"BLOCK": SCALE_BLOCK, "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "GROUP_M": tiles.group_m}
    sizes |= {"num_warps": tiles.warps, "num_stages": tiles.stages, **launch}

    codes, row_scales = round_to_codes(problem.hidden, None, slot_count, launch)
    inner = problem.hidden.new_empty((alignment.blocks * tiles.m, problem.intermediate_size))
    bias = problem.hidden if problem.gate_up_bias is None else problem.gate_up_bias
    fp8_gate_up_product[(alignment.blocks * triton.cdiv(2 * problem.intermediate_size, tiles.n),)](
        codes, row_scales, problem.gate_up, problem.scales.gate_up, bias, inner, *order, slot_count, problem.top_k,
        problem.hidden_size, problem.intermediate_size, INTERLEAVED=activation.interleaved,
        HAS_BIAS=problem.gate_up_bias is not None, ALPHA=activation.alpha, LIMIT=activation.limit or 0.0,
        SHIFT=activation.shift, **sizes,
    )  # fmt: skip
    codes, row_scales = round_to_codes(inner, alignment, slot_count, launch)
    partial = problem.hidden.new_empty((slot_count, problem.hidden_size))
    bias = problem.hidden if problem.down_bias is None else problem.down_bias
    fp8_down_product[(alignment.blocks * triton.cdiv(problem.hidden_size, tiles.n),)](
        codes, row_scales, problem.down, problem.scales.down, bias, partial, problem.topk_weights, *order, slot_count,
        problem.hidden_size, problem.intermediate_size, problem.routed_scaling, HAS_BIAS=problem.down_bias is not None, **sizes,
    )  # fmt: skip
    return launch_sum(problem, partial, launch)
