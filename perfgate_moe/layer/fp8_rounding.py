"""Rows of 16-bit numbers as 8-bit codes with a scale for each group of 128 columns, on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.layer.align import Alignment
from perfgate_moe.layer.problem import SCALE_BLOCK
from perfgate_moe.layer.programs import begin
from perfgate_moe.layer.reference import FLOAT8, FLOAT8_MAX, SMALLEST_PEAK

TOGETHER = 8  # groups of one program, a thousand numbers


@triton.jit
def nearest_code(values: tl.tensor) -> tl.tensor:
    """Float32 values of at most 448 rounded to the nearest float8_e4m3fn, ties to even, still as float32.

    The conversion that follows is then exact, on hardware as in Triton's interpreter, whose own conversion does not round.
    """
    bits = values.to(tl.int32, bitcast=True)
    kept = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    # Below 2^-6 codes lie 2^-9 apart: adding 1.5 * 2^14 leaves that many bits of a float32.
    small = (values + 24576.0) - 24576.0
    return tl.where(tl.abs(values) < 0.015625, small, kept.to(tl.float32, bitcast=True))


@triton.jit
def rounded_groups(values: tl.tensor, PEAK: tl.constexpr, SMALLEST: tl.constexpr) -> tl.tensor:
    """Codes of float32 `values` [n, GROUP], still as float32, and the scale [n] of each group."""
    # NaN must reach the scale: a maximum that drops it would make the group finite again.
    has_nan = tl.max((values != values).to(tl.int32), axis=1) > 0  # noqa: PLR0124 - NaN alone differs from itself
    peak = tl.maximum(tl.max(tl.abs(values), axis=1), SMALLEST)
    scale = tl.where(has_nan, float("nan"), peak / PEAK)
    scaled = tl.minimum(tl.maximum(values / scale[:, None], -PEAK), PEAK)
    return nearest_code(scaled), scale


@triton.jit
def round_rows(
    rows: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    used: tl.tensor,
    slots: tl.tensor,
    height: tl.tensor,
    K: tl.tensor,
    GROUP: tl.constexpr,
    TOGETHER: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    SORTED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """TOGETHER groups of `rows` [height, K]: their codes [height, K] and scales [height, ceil(K / GROUP)].

    With SORTED a row whose entry in `used` is no slot is left alone: it was never written.
    """
    begin(OVERLAP)
    groups = tl.cdiv(K, GROUP)
    place = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
    row = place // groups
    is_row = row < height
    if SORTED:
        is_row = is_row & (tl.load(used + row, mask=is_row, other=0) < slots)
    columns = (place % groups)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = is_row[:, None] & (columns < K)
    at = row.to(tl.int64)[:, None] * K + columns
    values = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    code, scale = rounded_groups(values, PEAK, SMALLEST)
    tl.store(codes + at, code.to(codes.dtype.element_ty), mask=inside)
    tl.store(scales + place, scale, mask=is_row)


def round_to_codes(rows: Tensor, alignment: Alignment | None, slots: int, launch: dict[str, bool]) -> tuple[Tensor, Tensor]:
    """Codes and group scales of rows; of those that hold a slot, with an alignment."""
    height, width = rows.shape
    groups = triton.cdiv(width, SCALE_BLOCK)
    codes = torch.empty_like(rows, dtype=FLOAT8)
    scales = torch.empty((height, groups), dtype=torch.float32, device=rows.device)
    used = scales if alignment is None else alignment.slots
    round_rows[(triton.cdiv(height * groups, TOGETHER),)](
        rows, codes, scales, used, slots, height, width, GROUP=SCALE_BLOCK, TOGETHER=TOGETHER, PEAK=FLOAT8_MAX,
        SMALLEST=SMALLEST_PEAK, SORTED=alignment is not None, num_warps=4, **launch,
    )  # fmt: skip
    return codes, scales
