"""The layer with 8-bit weights in blocks of 128 by 128, and activations rounded by groups of 128: `slots`, deterministic.

Hidden states and intermediate rows become codes with scales by one and the same arithmetic, in one of three places: a launch of
its own, the product that reads them (`Tiles.rounds`), or, for intermediate rows, the end of the first product where a program
has a whole group. Each step of 128 columns of a product is scaled in float32 and added to a float32 sum, so that the 8-bit
matrix units never add across scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.errors import MoeInputError, NotApplicableError
from perfgate_moe.layer.align import Alignment, align
from perfgate_moe.layer.combine import launch_sum
from perfgate_moe.layer.fp8_rounding import round_to_codes, rounded_groups
from perfgate_moe.layer.problem import SCALE_BLOCK, BlockScales, Problem
from perfgate_moe.layer.programs import activated, activated_total, begin, gate_up_rows, slots_of, store_slots, tile_of
from perfgate_moe.layer.reference import FLOAT8, FLOAT8_MAX, SMALLEST_PEAK
from perfgate_moe.layer.tiles import TilePlan, Tiles

WARPGROUP_ROWS = 64
MOST_STEPS = 2
"""Steps of 128 columns whose rows a walking program keeps."""
WALKING = ("DIRECT", "EVEN_K", "BLOCK", "BLOCK_M", "BLOCK_N", "GROUP_M")
"""What a walking product shares with one that does not walk, of the constants that its tiles give."""


@triton.jit
def codes_of_step(
    a: tl.tensor,
    scale: tl.tensor,
    is_row: tl.tensor,
    CODE: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    ROUNDS: tl.constexpr,
) -> tl.tensor:
    """Codes of one step `a` [ROWS, BLOCK] of rows and their scales [ROWS]: as they are stored, or with ROUNDS made here.

    The load of `a` is not part of it: loads of rows and weights stand together in front, in the order of the machine code.
    """
    if ROUNDS:
        codes, of_rows = rounded_groups(a.to(tl.float32), PEAK, SMALLEST)
        a = codes.to(CODE)
    else:
        of_rows = tl.load(scale, mask=is_row, other=0.0)
    return a, of_rows


@triton.jit
def scaled_product(
    rows: tl.tensor,
    row_scales: tl.tensor,
    row: tl.tensor,
    is_row: tl.tensor,
    weight: tl.tensor,
    weight_scales: tl.tensor,
    weight_row: tl.tensor,
    first_row: tl.tensor,
    K: tl.tensor,
    BLOCK: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    ROUNDS: tl.constexpr,
    ONE_SCALE: tl.constexpr,
    SWAPPED: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tensor:
    """Rows of `rows` [., K] times rows of an expert's `weight` [., K], each step scaled by its row's and its block's scale.

    `rows` are codes, or with ROUNDS 16-bit numbers. With ONE_SCALE the tile lies in the block of weight row `first_row`. With
    SWAPPED the weight is the first operand: the matrix units want 64 rows there, and have them in a weight.
    """
    ks = tl.arange(0, BLOCK)
    groups = tl.cdiv(K, BLOCK)
    a_tile = rows + row.to(tl.int64)[:, None] * K + ks[None, :]
    b_tile = weight + weight_row.to(tl.int64)[None, :] * K + ks[:, None]
    a_scale = row_scales + row.to(tl.int64) * groups
    b_scale = weight_scales + ((first_row if ONE_SCALE else weight_row) // BLOCK) * groups
    total = tl.zeros([BLOCK_N, ROWS] if SWAPPED else [ROWS, BLOCK_N], dtype=tl.float32)
    for step in range(groups):
        if EVEN_K:
            a = tl.load(a_tile, mask=is_row[:, None], other=0.0)
            b = tl.load(b_tile)
        else:
            inside = step * BLOCK + ks < K
            a = tl.load(a_tile, mask=is_row[:, None] & inside[None, :], other=0.0)
            b = tl.load(b_tile, mask=inside[:, None], other=0.0)
        a, of_rows = codes_of_step(a, a_scale + step, is_row, b.dtype, PEAK, SMALLEST, ROUNDS)
        of_weight = tl.load(b_scale + step)
        if SWAPPED:
            scale = (of_rows * of_weight)[None, :] if ONE_SCALE else of_weight[:, None] * of_rows[None, :]
            total += tl.dot(b.T, a.T) * scale
        else:
            scale = (of_rows * of_weight)[:, None] if ONE_SCALE else of_rows[:, None] * of_weight[None, :]
            total += tl.dot(a, b) * scale
        a_tile += BLOCK
        b_tile += BLOCK
    return total.T if SWAPPED else total


@triton.jit
def scaled_pair(
    rows: tl.tensor,
    row_scales: tl.tensor,
    row: tl.tensor,
    is_row: tl.tensor,
    weight: tl.tensor,
    weight_scales: tl.tensor,
    first: tl.tensor,
    apart: tl.tensor,
    K: tl.tensor,
    BLOCK: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    ROUNDS: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
) -> tl.tensor:
    """Two sums [ROWS, HALF] as `scaled_product` has them, of weight rows from `first` on and of those `apart` rows below.

    Each half lies in one block of scales, so that the scales of a step are a number for each row.
    """
    ks = tl.arange(0, BLOCK)
    groups = tl.cdiv(K, BLOCK)
    weight_row = first + tl.arange(0, HALF)
    a_tile = rows + row.to(tl.int64)[:, None] * K + ks[None, :]
    gate_tile = weight + weight_row.to(tl.int64)[None, :] * K + ks[:, None]
    up_tile = gate_tile + apart.to(tl.int64) * K
    a_scale = row_scales + row.to(tl.int64) * groups
    gate_scale = weight_scales + (first // BLOCK) * groups
    up_scale = weight_scales + ((first + apart) // BLOCK) * groups
    gate = tl.zeros([ROWS, HALF], dtype=tl.float32)
    up = tl.zeros([ROWS, HALF], dtype=tl.float32)
    for step in range(groups):
        if EVEN_K:
            a = tl.load(a_tile, mask=is_row[:, None], other=0.0)
            of_gate = tl.load(gate_tile)
            of_up = tl.load(up_tile)
        else:
            inside = step * BLOCK + ks < K
            a = tl.load(a_tile, mask=is_row[:, None] & inside[None, :], other=0.0)
            of_gate = tl.load(gate_tile, mask=inside[:, None], other=0.0)
            of_up = tl.load(up_tile, mask=inside[:, None], other=0.0)
        a, of_rows = codes_of_step(a, a_scale + step, is_row, of_gate.dtype, PEAK, SMALLEST, ROUNDS)
        gate += tl.dot(a, of_gate) * (of_rows * tl.load(gate_scale + step))[:, None]
        up += tl.dot(a, of_up) * (of_rows * tl.load(up_scale + step))[:, None]
        a_tile += BLOCK
        gate_tile += BLOCK
        up_tile += BLOCK
    return gate, up


@triton.jit
def fp8_gate_up_product(
    hidden: tl.tensor,
    codes: tl.tensor,
    row_scales: tl.tensor,
    weight: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    inner: tl.tensor,
    inner_scales: tl.tensor,
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
    PAIRED: tl.constexpr,
    STORES_CODES: tl.constexpr,
    DIRECT: tl.constexpr,
    ROUNDS: tl.constexpr,
    ONE_SCALE: tl.constexpr,
    SWAPPED: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `inner` [blocks * BLOCK_M, I] in 16 bits, sorted by expert: activation(hidden @ gate_up + bias).

    With DIRECT block b is slot b alone. With STORES_CODES `inner` gets codes of the 16-bit rows, and `inner_scales` their
    scales: a program then has one whole group of columns. With PAIRED gates and ups are products by themselves.
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
    rows = hidden if ROUNDS else codes
    token = tl.where(is_slot, slot // top_k, 0)
    expert_weight = weight + expert * 2 * I * H
    scales = weight_scales + expert * tl.cdiv(2 * I, BLOCK) * tl.cdiv(H, BLOCK)
    column = tile_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    if PAIRED:
        gate, up = scaled_pair(
            rows, row_scales, token, is_slot, expert_weight, scales, tile_n * (BLOCK_N // 2), I, H, BLOCK, PEAK, SMALLEST,
            ROUNDS, EVEN_K, BLOCK_M, BLOCK_N // 2,
        )  # fmt: skip
        if HAS_BIAS:
            gate += tl.load(bias + expert * 2 * I + column).to(tl.float32)[None, :]
            up += tl.load(bias + expert * 2 * I + I + column).to(tl.float32)[None, :]
        value = activated(gate, up, ALPHA, LIMIT, SHIFT)
    else:
        weight_row = gate_up_rows(tile_n, I, INTERLEAVED, BLOCK_N)
        total = scaled_product(
            rows, row_scales, token, is_slot, expert_weight, scales, weight_row, tile_n * BLOCK_N, H, BLOCK, PEAK, SMALLEST,
            ROUNDS, ONE_SCALE, SWAPPED, EVEN_K, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        value = activated_total(total, bias, weight_row, expert, I, HAS_BIAS, ALPHA, LIMIT, SHIFT, BLOCK_M, BLOCK_N)
    target = inner + place.to(tl.int64)[:, None] * I + column[None, :]
    is_stored = is_slot[:, None] & (column[None, :] < I)
    if STORES_CODES:
        # Through 16 bits, as the recipe has it, and nothing past the last column in the peak.
        value = tl.where(column[None, :] < I, value.to(hidden.dtype.element_ty).to(tl.float32), 0.0)
        value, scale = rounded_groups(value, PEAK, SMALLEST)
        tl.store(inner_scales + place.to(tl.int64) * tl.cdiv(I, BLOCK) + tile_n, scale, mask=is_slot)
    tl.store(target, value.to(inner.dtype.element_ty), mask=is_stored)


@triton.jit
def fp8_down_product(
    inner: tl.tensor,
    inner_scales: tl.tensor,
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
    I: tl.tensor,
    scaling: tl.tensor,
    HAS_BIAS: tl.constexpr,
    DIRECT: tl.constexpr,
    ROUNDS: tl.constexpr,
    ONE_SCALE: tl.constexpr,
    SWAPPED: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Rows of `target` [M * k, H], one for each slot: router weight times (inner @ down + bias).

    `inner` holds codes with `inner_scales`, or with ROUNDS 16-bit numbers. With DIRECT block b is slot b alone.
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
    scales = weight_scales + expert * tl.cdiv(H, BLOCK) * tl.cdiv(I, BLOCK)
    total = scaled_product(
        inner, inner_scales, place, is_slot, weight + expert * H * I, scales, safe, tile_n * BLOCK_N, I, BLOCK, PEAK, SMALLEST,
        ROUNDS, ONE_SCALE, SWAPPED, EVEN_K, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    store_slots(
        total, bias, expert, target, topk_weights, slot, is_slot, columns, safe, 1, H, scaling, HAS_BIAS, WEIGHT_ON_INPUT=False,
        ATOMIC=False,
    )  # fmt: skip


@triton.jit
def step_of(
    rows: tl.tensor, row_scales: tl.tensor, is_row: tl.tensor, inside: tl.tensor, EVEN_K: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Codes [ROWS, BLOCK] and scales [ROWS] of one step of rows that stay in a program."""
    mask = is_row[:, None] if EVEN_K else is_row[:, None] & inside[None, :]
    return tl.load(rows, mask=mask, other=0.0), tl.load(row_scales, mask=is_row, other=0.0)


@triton.jit
def fp8_walking_down_product(
    inner: tl.tensor,
    inner_scales: tl.tensor,
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
    I: tl.tensor,
    scaling: tl.tensor,
    tiles: tl.tensor,
    HAS_BIAS: tl.constexpr,
    DIRECT: tl.constexpr,
    EVEN_K: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """`fp8_down_product` of codes whose depth is one or two STEPS: rows are read once, and `tiles` column tiles pass by.

    A tile of so few steps is over before its pipeline is full. Here the next tile's weights are on their way while the last
    one's rows are stored.
    """
    begin(OVERLAP)
    tiles_n = tl.cdiv(H, BLOCK_N)
    walks = tl.cdiv(tiles_n, tiles)
    tiles_m = tl.load(block_count)
    if tl.program_id(0) >= tiles_m * walks:
        return
    tile_m, walk = tile_of(tl.program_id(0), tiles_m, walks, GROUP_M)
    expert = tl.load(block_experts + tile_m).to(tl.int64)
    slot, place, is_slot = slots_of(sorted_slots, slots, tile_m, DIRECT, BLOCK_M)
    ks = tl.arange(0, BLOCK)
    rows = inner + place.to(tl.int64)[:, None] * I + ks[None, :]
    row_scales = inner_scales + place.to(tl.int64) * STEPS
    first, of_first = step_of(rows, row_scales, is_slot, ks < I, EVEN_K)
    second, of_second = first, of_first
    if STEPS == 2:
        second, of_second = step_of(rows + BLOCK, row_scales + 1, is_slot, BLOCK + ks < I, EVEN_K)
    scales = weight_scales + expert * tl.cdiv(H, BLOCK) * STEPS
    for tile in tl.range(walk * tiles, tl.minimum(walk * tiles + tiles, tiles_n)):
        columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        safe = tl.minimum(columns, H - 1)
        b_tile = weight + expert * H * I + safe.to(tl.int64)[None, :] * I + ks[:, None]
        scale = scales + (tile * BLOCK_N // BLOCK) * STEPS
        b = tl.load(b_tile) if EVEN_K else tl.load(b_tile, mask=ks[:, None] < I, other=0.0)
        total = tl.dot(first, b) * (of_first * tl.load(scale))[:, None]
        if STEPS == 2:
            b = tl.load(b_tile + BLOCK) if EVEN_K else tl.load(b_tile + BLOCK, mask=BLOCK + ks[:, None] < I, other=0.0)
            total += tl.dot(second, b) * (of_second * tl.load(scale + 1))[:, None]
        store_slots(
            total, bias, expert, target, topk_weights, slot, is_slot, columns, safe, 1, H, scaling, HAS_BIAS,
            WEIGHT_ON_INPUT=False, ATOMIC=False,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows as a product reads them: 16-bit numbers, codes with scales, or both at hand; the same tensor where one is not."""

    numbers: Tensor
    codes: Tensor
    scales: Tensor


def fp8_moe(problem: Problem, plan: TilePlan, launch: dict[str, bool]) -> Tensor:
    """Run a layer with scales on the device of its tensors; returns `problem.out`, wholly written."""
    if not isinstance(problem.scales, BlockScales):
        raise NotApplicableError("fp8 is for layers with block scales")
    for tiles in (plan.gate_up, plan.down):
        if tiles.k != SCALE_BLOCK:
            raise MoeInputError(f"plan with k = {tiles.k}: products of 8-bit weights go {SCALE_BLOCK} deep, set k to that")
    if plan.down.walk > 1:
        require_walk(plan, problem.intermediate_size)
    slot_count = problem.topk_ids.numel()
    alignment = None if plan.is_direct else align(problem.topk_ids, problem.experts, plan.gate_up.m, launch)
    inner = _launch_gate_up(problem, problem.scales, plan, alignment, launch)
    partial = problem.hidden.new_empty((slot_count, problem.hidden_size))
    _launch_down(problem, problem.scales, plan.down, alignment, inner, partial, launch)
    return launch_sum(problem, partial, launch)


def stores_codes(plan: TilePlan) -> bool:
    """Whether the first product ends with rounding: its programs have whole groups, and the second wants codes."""
    return plan.gate_up.n == 2 * SCALE_BLOCK and not plan.down.rounds


def is_swapped(tiles: Tiles) -> bool:
    """Whether the weight goes first into the matrix units, which want 64 rows there: for fewer rows of tokens."""
    return tiles.m < WARPGROUP_ROWS <= tiles.n


def is_paired(tiles: Tiles, intermediate_size: int, *, is_interleaved: bool) -> bool:
    """Whether gates and ups are products by themselves: I apart, and each half of a tile in one block of scales."""
    return tiles.m >= WARPGROUP_ROWS and not is_interleaved and intermediate_size % SCALE_BLOCK == 0


def has_one_scale(tiles: Tiles, *, is_contiguous: bool) -> bool:
    """Whether the weight rows of a tile lie in one block of scales; gates and ups of a chunked layout are far apart."""
    return is_contiguous and SCALE_BLOCK % tiles.n == 0


def require_walk(plan: TilePlan, intermediate_size: int) -> None:
    """NotApplicableError for a plan whose second product cannot walk over column tiles."""
    steps = triton.cdiv(intermediate_size, SCALE_BLOCK)
    is_fit = not plan.is_direct and not plan.down.rounds and plan.down.m >= WARPGROUP_ROWS and SCALE_BLOCK % plan.down.n == 0
    if steps > MOST_STEPS or not is_fit:
        raise NotApplicableError(f"only sorted codes of at most {MOST_STEPS * SCALE_BLOCK} columns are walked over")


def _tile_arguments(tiles: Tiles, depth: int, *, is_contiguous: bool, is_direct: bool) -> dict[str, Any]:
    sizes: dict[str, Any] = {"BLOCK": SCALE_BLOCK, "PEAK": FLOAT8_MAX, "SMALLEST": SMALLEST_PEAK, "DIRECT": is_direct}
    sizes |= {"BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "GROUP_M": tiles.group_m, "ROUNDS": tiles.rounds}
    sizes |= {"ONE_SCALE": has_one_scale(tiles, is_contiguous=is_contiguous), "SWAPPED": is_swapped(tiles)}
    return sizes | {"EVEN_K": depth % SCALE_BLOCK == 0, "num_warps": tiles.warps, "num_stages": tiles.stages}


def _launch_gate_up(
    problem: Problem, scales: BlockScales, plan: TilePlan, alignment: Alignment | None, launch: dict[str, bool]
) -> _Rows:
    """The first product and its activation, and its rows as the second product wants them."""
    slot_count, activation, tiles = problem.topk_ids.numel(), problem.activation, plan.gate_up
    blocks = slot_count if alignment is None else alignment.blocks
    hidden = problem.hidden
    codes, row_scales = (hidden, hidden) if tiles.rounds else round_to_codes(hidden, None, slot_count, launch)
    shape = (slot_count if alignment is None else blocks * tiles.m, problem.intermediate_size)
    is_rounded = stores_codes(plan)
    inner = torch.empty(shape, dtype=FLOAT8 if is_rounded else hidden.dtype, device=hidden.device)
    inner_scales = inner
    if is_rounded:
        inner_scales = torch.empty((shape[0], triton.cdiv(shape[1], SCALE_BLOCK)), dtype=torch.float32, device=hidden.device)
    ids = problem.topk_ids
    order = (ids, ids, ids) if alignment is None else (alignment.slots, alignment.experts, alignment.count)
    fp8_gate_up_product[(blocks * triton.cdiv(2 * problem.intermediate_size, tiles.n),)](
        hidden, codes, row_scales, problem.gate_up, scales.gate_up,
        hidden if problem.gate_up_bias is None else problem.gate_up_bias, inner, inner_scales, *order, slot_count,
        problem.top_k, problem.hidden_size, problem.intermediate_size, INTERLEAVED=activation.interleaved,
        HAS_BIAS=problem.gate_up_bias is not None, ALPHA=activation.alpha, LIMIT=activation.limit or 0.0,
        SHIFT=activation.shift, STORES_CODES=is_rounded,
        PAIRED=is_paired(tiles, problem.intermediate_size, is_interleaved=activation.interleaved),
        **_tile_arguments(
            tiles, problem.hidden_size, is_contiguous=activation.interleaved, is_direct=alignment is None
        ), **launch,
    )  # fmt: skip
    if is_rounded or plan.down.rounds:
        return _Rows(numbers=inner, codes=inner, scales=inner_scales)
    codes, row_scales = round_to_codes(inner, alignment, slot_count, launch)
    return _Rows(numbers=inner, codes=codes, scales=row_scales)


def _launch_down(
    problem: Problem,
    scales: BlockScales,
    tiles: Tiles,
    alignment: Alignment | None,
    inner: _Rows,
    partial: Tensor,
    launch: dict[str, bool],
) -> None:
    """The second product, into a row for each slot."""
    ids = problem.topk_ids
    order = (ids, ids, ids) if alignment is None else (alignment.slots, alignment.experts, alignment.count)
    blocks = ids.numel() if alignment is None else alignment.blocks
    kernel, columns = fp8_down_product, triton.cdiv(problem.hidden_size, tiles.n)
    arguments = _tile_arguments(tiles, problem.intermediate_size, is_contiguous=True, is_direct=alignment is None)
    if tiles.walk > 1:
        kernel, columns = fp8_walking_down_product, triton.cdiv(columns, tiles.walk)
        arguments = {name: arguments[name] for name in (*WALKING, "num_warps", "num_stages")}
        arguments |= {"tiles": tiles.walk, "STEPS": triton.cdiv(problem.intermediate_size, SCALE_BLOCK)}
    kernel[(blocks * columns,)](
        inner.numbers if tiles.rounds else inner.codes, inner.scales, problem.down, scales.down,
        problem.hidden if problem.down_bias is None else problem.down_bias, partial, problem.topk_weights, *order, ids.numel(),
        problem.hidden_size, problem.intermediate_size, problem.routed_scaling, HAS_BIAS=problem.down_bias is not None,
        **arguments, **launch,
    )  # fmt: skip
