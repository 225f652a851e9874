"""How the kernels of every format begin and end: which tile and rows; bias, activation or router weights, where the rows go."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda.gdc import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(OVERLAP: tl.constexpr) -> None:
    """With OVERLAP, let the next kernel's programs be placed now, and wait until the previous kernel's results are there."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def in_eighths(width: tl.tensor) -> tl.tensor:
    """The same width, of which the compiler sees that 8 divides it: of an argument it knows divisors of 16 alone.

    Rows of 16-bit numbers then begin at multiples of 16 bytes, and are copied by as many.
    """
    return width // 8 * 8


@triton.jit
def tile_of(program: tl.tensor, tiles_m: tl.tensor, tiles_n: tl.tensor, GROUP_M: tl.constexpr) -> tl.tensor:
    """Row and column tile of a program: groups of GROUP_M row tiles sweep the columns together, so that both stay in L2."""
    per_group = GROUP_M * tiles_n
    group = program // per_group
    first_m = group * GROUP_M
    height = tl.minimum(tiles_m - first_m, GROUP_M)
    within = program - group * per_group
    return first_m + within % height, within // height


@triton.jit
def slots_of(
    sorted_slots: tl.tensor, slots: tl.tensor, tile_m: tl.tensor, DIRECT: tl.constexpr, BLOCK_M: tl.constexpr
) -> tl.tensor:
    """Of each row of a block: its slot, its place among intermediate rows, and whether it is a slot at all.

    The place is the slot's own number where a block is one slot, otherwise the one in the sorted order.
    """
    lanes = tl.arange(0, BLOCK_M)
    slot = tl.where(lanes == 0, tile_m, slots) if DIRECT else tl.load(sorted_slots + tile_m * BLOCK_M + lanes)
    place = slot if DIRECT else tile_m * BLOCK_M + lanes
    return slot, place, slot < slots


@triton.jit
def activated(gate: tl.tensor, up: tl.tensor, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr) -> tl.tensor:
    """Gate times its sigmoid times up, clamped if LIMIT is positive; NaN stays NaN."""
    if LIMIT > 0:
        gate = tl.minimum(gate, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        up = tl.minimum(up, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        up = tl.maximum(up, -LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return gate * tl.sigmoid(gate * ALPHA) * (up + SHIFT)


@triton.jit
def gate_up_rows(
    tile_n: tl.tensor,
    I: tl.tensor,
    INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tensor:
    """The weight row of each lane, gate and up alternating; lanes past the end read the last pair and are not stored."""
    lanes = tl.arange(0, BLOCK_N)
    safe = tl.minimum(tile_n * (BLOCK_N // 2) + lanes // 2, I - 1)
    return 2 * safe + lanes % 2 if INTERLEAVED else (lanes % 2) * I + safe


@triton.jit
def activated_total(
    total: tl.tensor,
    bias: tl.tensor,
    weight_row: tl.tensor,
    expert: tl.tensor,
    I: tl.tensor,
    HAS_BIAS: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tensor:
    """Float32 activation(total + bias) [ROWS, BLOCK_N / 2], gate and up alternating in `total`."""
    if HAS_BIAS:
        total += tl.load(bias + expert * 2 * I + weight_row).to(tl.float32)[None, :]
    gate, up = tl.split(tl.reshape(total, [ROWS, BLOCK_N // 2, 2]))
    return activated(gate, up, ALPHA, LIMIT, SHIFT)


@triton.jit
def store_activated(
    total: tl.tensor,
    bias: tl.tensor,
    weight_row: tl.tensor,
    expert: tl.tensor,
    inner: tl.tensor,
    row: tl.tensor,
    is_slot: tl.tensor,
    tile_n: tl.tensor,
    I: tl.tensor,
    HAS_BIAS: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Store activation(total + bias) in rows `row` of `inner` [., I]."""
    value = activated_total(total, bias, weight_row, expert, I, HAS_BIAS, ALPHA, LIMIT, SHIFT, ROWS, BLOCK_N)
    column = tile_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    target = inner + row.to(tl.int64)[:, None] * I + column[None, :]
    tl.store(target, value.to(inner.dtype.element_ty), mask=is_slot[:, None] & (column[None, :] < I))


@triton.jit
def store_slots(
    total: tl.tensor,
    bias: tl.tensor,
    expert: tl.tensor,
    target: tl.tensor,
    topk_weights: tl.tensor,
    slot: tl.tensor,
    is_slot: tl.tensor,
    columns: tl.tensor,
    safe: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    scaling: tl.tensor,
    HAS_BIAS: tl.constexpr,
    WEIGHT_ON_INPUT: tl.constexpr,
    ATOMIC: tl.constexpr,
) -> None:
    """Store router weight times (total + bias) in a row of `target` [M * k, H] for each slot, or with ATOMIC add it to [M, H].

    `safe` holds the columns, those past the end replaced by the last one.
    """
    if HAS_BIAS:
        total += tl.load(bias + expert * H + safe).to(tl.float32)[None, :]
    if WEIGHT_ON_INPUT:
        total *= scaling
    else:
        total *= tl.load(topk_weights + slot, mask=is_slot, other=0.0)[:, None] * scaling
    is_stored = is_slot[:, None] & (columns[None, :] < H)
    if ATOMIC:
        token = (slot // top_k).to(tl.int64)
        tl.atomic_add(target + token[:, None] * H + columns[None, :], total, mask=is_stored, sem="relaxed")
    else:
        place = target + slot.to(tl.int64)[:, None] * H + columns[None, :]
        tl.store(place, total.to(target.dtype.element_ty), mask=is_stored)
