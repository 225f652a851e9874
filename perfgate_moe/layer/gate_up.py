"""The first grouped product of the layer, with bias, clamp and activation in its epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from perfgate_moe.layer.programs import begin, gate_up_rows, store_activated, tile_of


@triton.jit
def gate_up_tile(
    hidden: tl.tensor,
    weight: tl.tensor,
    weight_tiles: tl.tensor,
    bias: tl.tensor,
    inner: tl.tensor,
    topk_weights: tl.tensor,
    sorted_slots: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_ON_INPUT: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
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
    """The first ROWS rows of one tile of the first product."""
    rows = tl.arange(0, ROWS)
    slot = tl.where(rows == 0, tile_m, slots) if DIRECT else tl.load(sorted_slots + tile_m * BLOCK_M + rows)
    is_slot = slot < slots
    token = tl.where(is_slot, slot // top_k, 0)
    ks = tl.arange(0, BLOCK_K)
    weight_row = gate_up_rows(tile_n, I, INTERLEAVED, BLOCK_N)
    a_tile = hidden + token.to(tl.int64)[:, None] * H + ks[None, :]
    b_tile = weight + expert * 2 * I * H + weight_row.to(tl.int64)[None, :] * H + ks[:, None]
    first_row = (expert * 2 * I).to(tl.int32) + tile_n * BLOCK_N
    total = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    for start in range(0, H, BLOCK_K):
        # Rows of padding read nothing: at few tokens they would cost more traffic than the tokens.
        if EVEN_K:
            a = tl.load(a_tile, mask=is_slot[:, None], other=0.0)
        else:
            a = tl.load(a_tile, mask=is_slot[:, None] & (start + ks[None, :] < H), other=0.0)
        if TMA:
            b = weight_tiles.load([first_row, start]).T
        elif EVEN_K:
            b = tl.load(b_tile)
        else:
            b = tl.load(b_tile, mask=start + ks[:, None] < H, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_tile += BLOCK_K
        b_tile += BLOCK_K
    if WEIGHT_ON_INPUT:
        total *= tl.load(topk_weights + slot, mask=is_slot, other=0.0)[:, None]
    # A slot's own row when every slot is a block, otherwise its place in the sorted order.
    row = slot if DIRECT else tile_m * BLOCK_M + rows
    store_activated(
        total, bias, weight_row, expert, inner, row, is_slot, tile_n, I, HAS_BIAS, ALPHA, LIMIT, SHIFT, ROWS, BLOCK_N
    )


@triton.jit
def gate_up_product(
    hidden: tl.tensor,
    weight: tl.tensor,
    weight_tiles: tl.tensor,
    bias: tl.tensor,
    inner: tl.tensor,
    topk_weights: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    H: tl.tensor,
    I: tl.tensor,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_ON_INPUT: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    SHIFT: tl.constexpr,
    DIRECT: tl.constexpr,
    TMA: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SHORT_BLOCKS: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `inner` [blocks * BLOCK_M, I], sorted by expert: activation(hidden @ gate_up + bias).

    A tile covers BLOCK_N rows of the weight, gate and up alternating, and so BLOCK_N / 2 columns of `inner`. With DIRECT there
    is no alignment: block b is slot b alone. With TMA the weight comes through the tensor copy engine.
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
    # Rows of a block are filled from the top: a block with nothing below its middle is computed at half the height.
    if SHORT_BLOCKS and not DIRECT:
        if tl.load(sorted_slots + tile_m * BLOCK_M + BLOCK_M // 2) >= slots:
            gate_up_tile(
                hidden, weight, weight_tiles, bias, inner, topk_weights, sorted_slots, slots, top_k, H, I,
                INTERLEAVED, HAS_BIAS, WEIGHT_ON_INPUT, ALPHA, LIMIT, SHIFT, DIRECT, TMA, EVEN_K, BLOCK_M, BLOCK_N,
                BLOCK_K, tile_m, tile_n, expert, BLOCK_M // 2,
            )  # fmt: skip
        else:
            gate_up_tile(
                hidden, weight, weight_tiles, bias, inner, topk_weights, sorted_slots, slots, top_k, H, I,
                INTERLEAVED, HAS_BIAS, WEIGHT_ON_INPUT, ALPHA, LIMIT, SHIFT, DIRECT, TMA, EVEN_K, BLOCK_M, BLOCK_N,
                BLOCK_K, tile_m, tile_n, expert, BLOCK_M,
            )  # fmt: skip
    else:
        gate_up_tile(
            hidden, weight, weight_tiles, bias, inner, topk_weights, sorted_slots, slots, top_k, H, I, INTERLEAVED,
            HAS_BIAS, WEIGHT_ON_INPUT, ALPHA, LIMIT, SHIFT, DIRECT, TMA, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, tile_m,
            tile_n, expert, BLOCK_M,
        )  # fmt: skip
