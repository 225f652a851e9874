"""The second grouped product of the layer, with bias and router weights in its epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from perfgate_moe.layer.programs import begin, in_eighths, store_slots, tile_of


@triton.jit
def down_tile(
    inner: tl.tensor,
    inner_tiles: tl.tensor,
    weight: tl.tensor,
    weight_tiles: tl.tensor,
    bias: tl.tensor,
    target: tl.tensor,
    topk_weights: tl.tensor,
    sorted_slots: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    scaling: tl.tensor,
    HAS_BIAS: tl.constexpr,
    WEIGHT_ON_INPUT: tl.constexpr,
    ATOMIC: tl.constexpr,
    DIRECT: tl.constexpr,
    TMA: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    tile_m: tl.tensor,
    tile_n: tl.tensor,
    expert: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    """The first ROWS rows of one tile of the second product."""
    rows = tl.arange(0, ROWS)
    slot = tl.where(rows == 0, tile_m, slots) if DIRECT else tl.load(sorted_slots + tile_m * BLOCK_M + rows)
    is_slot = slot < slots
    ks = tl.arange(0, BLOCK_K)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = tl.minimum(columns, H - 1)
    row = slot if DIRECT else tile_m * BLOCK_M + rows
    a_tile = inner + row.to(tl.int64)[:, None] * I + ks[None, :]
    b_tile = weight + expert * H * I + safe.to(tl.int64)[None, :] * I + ks[:, None]
    first_row = (expert * H).to(tl.int32) + tile_n * BLOCK_N
    total = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    for start in range(0, I, BLOCK_K):
        if TMA:
            a = inner_tiles.load([tile_m * BLOCK_M, start])
            b = weight_tiles.load([first_row, start]).T
        elif EVEN_K:
            a = tl.load(a_tile, mask=is_slot[:, None], other=0.0)
            b = tl.load(b_tile)
        else:
            a = tl.load(a_tile, mask=is_slot[:, None] & (start + ks[None, :] < I), other=0.0)
            b = tl.load(b_tile, mask=start + ks[:, None] < I, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_tile += BLOCK_K
        b_tile += BLOCK_K
    store_slots(
        total, bias, expert, target, topk_weights, slot, is_slot, columns, safe, top_k, H, scaling, HAS_BIAS, WEIGHT_ON_INPUT,
        ATOMIC,
    )  # fmt: skip


@triton.jit
def down_product(
    inner: tl.tensor,
    inner_tiles: tl.tensor,
    inner_short_tiles: tl.tensor,
    weight: tl.tensor,
    weight_tiles: tl.tensor,
    bias: tl.tensor,
    target: tl.tensor,
    topk_weights: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    scaling: tl.tensor,
    HAS_BIAS: tl.constexpr,
    WEIGHT_ON_INPUT: tl.constexpr,
    ATOMIC: tl.constexpr,
    DIRECT: tl.constexpr,
    TMA: tl.constexpr,
    EVEN_K: tl.constexpr,
    EIGHTHS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SHORT_BLOCKS: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Router weight times (inner @ down + bias) for each slot.

    Goes to `target` [M * k, H], a row of its own for each slot; or, with ATOMIC, is added to `target` [M, H] float32.
    """
    begin(OVERLAP)
    if EIGHTHS:
        I = in_eighths(I)
    tiles_n = tl.cdiv(H, BLOCK_N)
    tiles_m = slots if DIRECT else tl.load(block_count)
    if tl.program_id(0) >= tiles_m * tiles_n:
        return
    tile_m, tile_n = tile_of(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    expert = tl.load(block_experts + tile_m).to(tl.int64)
    if DIRECT and expert < 0:
        return
    # Rows of a block are filled from the top: a block with nothing below its middle is computed at half the height.
    if SHORT_BLOCKS and not DIRECT:
        if tl.load(sorted_slots + tile_m * BLOCK_M + BLOCK_M // 2) >= slots:
            down_tile(
                inner, inner_short_tiles, weight, weight_tiles, bias, target, topk_weights, sorted_slots, slots,
                top_k, H, I, scaling, HAS_BIAS, WEIGHT_ON_INPUT, ATOMIC, DIRECT, TMA, EVEN_K, BLOCK_M, BLOCK_N,
                BLOCK_K, tile_m, tile_n, expert, BLOCK_M // 2,
            )  # fmt: skip
        else:
            down_tile(
                inner, inner_tiles, weight, weight_tiles, bias, target, topk_weights, sorted_slots, slots, top_k, H,
                I, scaling, HAS_BIAS, WEIGHT_ON_INPUT, ATOMIC, DIRECT, TMA, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K,
                tile_m, tile_n, expert, BLOCK_M,
            )  # fmt: skip
    else:
        down_tile(
            inner, inner_tiles, weight, weight_tiles, bias, target, topk_weights, sorted_slots, slots, top_k, H, I,
            scaling, HAS_BIAS, WEIGHT_ON_INPUT, ATOMIC, DIRECT, TMA, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, tile_m,
            tile_n, expert, BLOCK_M,
        )  # fmt: skip
