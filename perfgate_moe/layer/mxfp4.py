"""The layer with 4-bit weights (MXFP4), unpacked and scaled in registers before the matrix units; `slots`, deterministic.

A weight times its scale is an exact number of 16 bits, so the products are those of a layer with 16-bit weights that reads a
quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.align import align
from perfgate_moe.layer.bricks import BRICK, LaidOut, brick_product, require_order
from perfgate_moe.layer.combine import launch_sum
from perfgate_moe.layer.problem import MICRO_BLOCK, MicroScales, Problem
from perfgate_moe.layer.programs import begin, gate_up_rows, slots_of, store_activated, store_slots, tile_of
from perfgate_moe.layer.tiles import TilePlan, Tiles, has_warpgroups

WARPGROUP_ROWS = 64


@triton.jit
def values_of(pairs: tl.tensor) -> tl.tensor:
    """Float32 values of both 4-bit e2m1 codes of each byte, [..., 2], the low half first.

    A code's exponent and mantissa, put where a float32 has its lowest exponent bits and its highest mantissa bit, read 2^126
    times too small, for 0.5 as well, which is the one subnormal of either format: one exact product mends all sixteen.
    """
    both = pairs.to(tl.int32)
    low = ((both << 22) & 0x01C00000) | ((both << 28) & -0x80000000)
    high = ((both << 18) & 0x01C00000) | ((both << 24) & -0x80000000)
    return tl.join(low, high).to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def powers_of(scales: tl.tensor) -> tl.tensor:
    """Float32 powers of two of e8m0 bytes; the byte of 2^-127, which is no normal float32, becomes zero."""
    return (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True)


def _assemble_pair(place: int, source: str, power: int, exponent: int, sign: int) -> str:
    """Output `place` from the codes of two bytes: their bits moved up by `exponent` and `sign`, times 2^126, times a power."""
    return f"""
    shl.b32 bits, {source}, {exponent};
    and.b32 bits, bits, 0x01C001C0;
    shl.b32 sign, {source}, {sign};
    and.b32 sign, sign, 0x80008000;
    or.b32 bits, bits, sign;
    fma.rn.bf16x2 bits, bits, wide, none;
    fma.rn.bf16x2 ${place}, bits, ${power}, none;
"""


# Four bytes to eight bfloat16, two at a time: the low halves of the first two bytes and of the last two, then the high ones.
# Both products are exact; 0x80008000 is a pair of -0, which a sum leaves alone.
_ASSEMBLY = "".join([
    """{
    .reg .b32 first, last, bits, sign, wide, none;
    mov.b32 wide, 0x7E807E80;
    mov.b32 none, 0x80008000;
    prmt.b32 first, $4, 0, 0x4140;
    prmt.b32 last, $4, 0, 0x4342;
""",
    _assemble_pair(0, "first", 5, exponent=6, sign=12),
    _assemble_pair(1, "last", 6, exponent=6, sign=12),
    _assemble_pair(2, "first", 5, exponent=2, sign=8),
    _assemble_pair(3, "last", 6, exponent=2, sign=8),
    "}",
])  # fmt: skip
PAIRS_TO_BFLOAT16 = tl.constexpr(_ASSEMBLY)


@triton.jit
def bfloat16_of(pairs: tl.tensor, scales: tl.tensor) -> tl.tensor:
    """Bfloat16 values of both codes of each byte of `pairs` [n, g, 16] times the powers of `scales` [n, g]: [n, g, 16, 2]."""
    power = (scales.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)
    power = tl.broadcast_to(power[:, :, None], pairs.shape)
    low, high = tl.inline_asm_elementwise(
        PAIRS_TO_BFLOAT16, "=r,=r,=r,=r,r,r,r", [pairs, power], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
    )
    return tl.join(low, high)


@triton.jit
def unpacked_product(
    rows: tl.tensor,
    row: tl.tensor,
    is_row: tl.tensor,
    pairs: tl.tensor,
    scales: tl.tensor,
    weight_row: tl.tensor,
    K: tl.tensor,
    MICRO: tl.constexpr,
    EVEN_K: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    SWAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Rows of `rows` [., K] times rows of an expert's weight in `pairs` [., K / 2] with `scales` [., K / 32].

    With SWAPPED the weight is the first operand, which the matrix units take from the registers that it is unpacked in. With
    IN_PAIRS it is unpacked two codes at a time, in bfloat16.
    """
    ks = tl.arange(0, BLOCK_K)
    halves = tl.arange(0, BLOCK_K // 2)
    groups = tl.arange(0, BLOCK_K // MICRO)
    a_tile = rows + row.to(tl.int64)[:, None] * K + ks[None, :]
    b_tile = pairs + weight_row.to(tl.int64)[:, None] * (K // 2) + halves[None, :]
    s_tile = scales + weight_row.to(tl.int64)[:, None] * (K // MICRO) + groups[None, :]
    total = tl.zeros([BLOCK_N, ROWS] if SWAPPED else [ROWS, BLOCK_N], dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_tile, mask=is_row[:, None], other=0.0)
            packed = tl.load(b_tile)
            scale = tl.load(s_tile)
        else:
            a = tl.load(a_tile, mask=is_row[:, None] & (start + ks[None, :] < K), other=0.0)
            packed = tl.load(b_tile, mask=start // 2 + halves[None, :] < K // 2, other=0)
            scale = tl.load(s_tile, mask=start // MICRO + groups[None, :] < K // MICRO, other=0)
        if IN_PAIRS:
            blocks = bfloat16_of(tl.reshape(packed, [BLOCK_N, BLOCK_K // MICRO, MICRO // 2]), scale)
        else:
            blocks = tl.reshape(values_of(packed), [BLOCK_N, BLOCK_K // MICRO, MICRO]) * powers_of(scale)[:, :, None]
        b = tl.reshape(blocks, [BLOCK_N, BLOCK_K]).to(a.dtype)
        total = tl.dot(b if SWAPPED else a, a.T if SWAPPED else b.T, total, input_precision="ieee")
        a_tile += BLOCK_K
        b_tile += BLOCK_K // 2
        s_tile += BLOCK_K // MICRO
    return total.T if SWAPPED else total


@triton.jit
def mxfp4_gate_up_product(
    hidden: tl.tensor,
    pairs: tl.tensor,
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
    MICRO: tl.constexpr,
    EVEN_K: tl.constexpr,
    LAID: tl.constexpr,
    FOLDED: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    SWAPPED: tl.constexpr,
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
    if LAID:
        bricks = expert * tl.cdiv(2 * I, 64) * tl.cdiv(H, 64)
        total = brick_product(
            hidden, token, is_slot, pairs + bricks * 2048, scales + bricks * 128, tile_n * (BLOCK_N // 64), H, 2 * I, EVEN_K,
            FOLDED, IN_PAIRS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        total = unpacked_product(
            hidden, token, is_slot, pairs + expert * 2 * I * (H // 2), scales + expert * 2 * I * (H // MICRO), weight_row, H,
            MICRO, EVEN_K, IN_PAIRS, SWAPPED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    store_activated(
        total, bias, weight_row, expert, inner, place, is_slot, tile_n, I, HAS_BIAS, ALPHA, LIMIT, SHIFT, BLOCK_M, BLOCK_N
    )


@triton.jit
def mxfp4_down_product(
    inner: tl.tensor,
    pairs: tl.tensor,
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
    MICRO: tl.constexpr,
    EVEN_K: tl.constexpr,
    LAID: tl.constexpr,
    FOLDED: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    SWAPPED: tl.constexpr,
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
    if LAID:
        bricks = expert * tl.cdiv(H, 64) * tl.cdiv(I, 64)
        total = brick_product(
            inner, place, is_slot, pairs + bricks * 2048, scales + bricks * 128, tile_n * (BLOCK_N // 64), I, H, EVEN_K, FOLDED,
            IN_PAIRS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        total = unpacked_product(
            inner, place, is_slot, pairs + expert * H * (I // 2), scales + expert * H * (I // MICRO), safe, I, MICRO, EVEN_K,
            IN_PAIRS, SWAPPED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    store_slots(
        total, bias, expert, target, topk_weights, slot, is_slot, columns, safe, 1, H, scaling, HAS_BIAS, WEIGHT_ON_INPUT=False,
        ATOMIC=False,
    )  # fmt: skip


def mxfp4_moe(problem: Problem, plan: TilePlan, launch: dict[str, bool]) -> Tensor:
    """Run a layer with 4-bit weights on the device of its tensors; returns `problem.out`, wholly written."""
    if not isinstance(problem.scales, MicroScales):
        raise NotApplicableError("mxfp4 is for layers with 4-bit weights")
    alignment = None if plan.is_direct else align(problem.topk_ids, problem.experts, plan.gate_up.m, launch)
    slot_count, activation, ids = problem.topk_ids.numel(), problem.activation, problem.topk_ids
    order = (ids, ids, ids) if alignment is None else (alignment.slots, alignment.experts, alignment.count)
    blocks = slot_count if alignment is None else alignment.blocks

    (first, first_layout), (second, second_layout) = _read_weights(problem, plan)
    inner_rows = slot_count if alignment is None else blocks * plan.gate_up.m
    inner = problem.hidden.new_empty((inner_rows, problem.intermediate_size))
    bias = problem.hidden if problem.gate_up_bias is None else problem.gate_up_bias
    gate_up = mxfp4_gate_up_product[(blocks * triton.cdiv(2 * problem.intermediate_size, plan.gate_up.n),)](
        problem.hidden, *first, bias, inner, *order, slot_count, problem.top_k,
        problem.hidden_size, problem.intermediate_size, INTERLEAVED=activation.interleaved,
        HAS_BIAS=problem.gate_up_bias is not None, ALPHA=activation.alpha, LIMIT=activation.limit or 0.0,
        SHIFT=activation.shift, **_tile_arguments(problem, plan.gate_up, problem.hidden_size, is_direct=plan.is_direct),
        **first_layout, **launch,
    )  # fmt: skip
    partial = problem.hidden.new_empty((slot_count, problem.hidden_size))
    bias = problem.hidden if problem.down_bias is None else problem.down_bias
    down = mxfp4_down_product[(blocks * triton.cdiv(problem.hidden_size, plan.down.n),)](
        inner, *second, bias, partial, problem.topk_weights, *order, slot_count,
        problem.hidden_size, problem.intermediate_size, problem.routed_scaling, HAS_BIAS=problem.down_bias is not None,
        **_tile_arguments(problem, plan.down, problem.intermediate_size, is_direct=plan.is_direct),
        **second_layout, **launch,
    )  # fmt: skip
    if first_layout["LAID"] and is_in_pairs(problem):
        for compiled in (gate_up, down):
            require_order(compiled)
    return launch_sum(problem, partial, launch)


def _read_weights(problem: Problem, plan: TilePlan) -> Iterator[tuple[tuple[Tensor, Tensor], dict[str, bool]]]:
    """Codes and scales of both products, and how they lie."""
    if isinstance(problem, LaidOut):
        if any(size % BRICK for tiles in (plan.gate_up, plan.down) for size in (tiles.n, tiles.k)):
            raise NotApplicableError(f"bricks: tiles of weights are multiples of {BRICK} rows and columns")
        for bricks in (problem.gate_up_bricks, problem.down_bricks):
            yield (bricks.codes, bricks.scales), {"LAID": True, "FOLDED": bricks.is_folded}
    elif isinstance(problem.scales, MicroScales):
        for pairs, scales in ((problem.gate_up, problem.scales.gate_up), (problem.down, problem.scales.down)):
            yield (pairs, scales), {"LAID": False, "FOLDED": False}


def is_swapped(tiles: Tiles) -> bool:
    """Whether the weight goes first into the matrix units, which want 64 rows there."""
    return tiles.n >= WARPGROUP_ROWS


def is_in_pairs(problem: Problem) -> bool:
    """Whether codes are unpacked two at a time: in bfloat16, by assembly, which Triton's interpreter does not run.

    Bricks on Hopper alone: elsewhere the four bytes of a word are no neighbours in the registers, and answers would be wrong.
    """
    is_ordered = problem.form != "bricks" or has_warpgroups(problem.hidden.device)
    return bool(problem.hidden.dtype == torch.bfloat16 and problem.hidden.is_cuda and is_ordered)


def _tile_arguments(problem: Problem, tiles: Tiles, depth: int, *, is_direct: bool) -> dict[str, Any]:
    sizes: dict[str, Any] = {"MICRO": MICRO_BLOCK, "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k}
    sizes |= {"GROUP_M": tiles.group_m, "DIRECT": is_direct, "SWAPPED": is_swapped(tiles), "IN_PAIRS": is_in_pairs(problem)}
    return sizes | {"EVEN_K": depth % tiles.k == 0, "num_warps": tiles.warps, "num_stages": tiles.stages}
