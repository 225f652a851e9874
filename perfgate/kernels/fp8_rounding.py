"""Rows of 16-bit numbers as 8-bit codes with a scale for each group of 128 columns, on the device."""

# ruff: noqa: PLR0913, PLR0917 - a kernel's arguments are its interface
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfgate.kernels.align import Alignment
from perfgate.kernels.problem import SCALE_BLOCK
from perfgate.kernels.reference import FLOAT8, FLOAT8_MAX, SMALLEST_PEAK
from perfgate.kernels.schedule import begin


@triton.jit  # type: ignore[untyped-decorator]
def nearest_code(values: tl.tensor) -> tl.tensor:
    """Float32 values of at most 448 rounded to the nearest float8_e4m3fn, ties to even, still as float32.

    The conversion that follows is then exact, on hardware as in Triton's interpreter, whose own conversion does not round.
    """
    bits = values.to(tl.int32, bitcast=True)
    kept = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    # Below 2^-6 codes lie 2^-9 apart: adding 1.5 * 2^14 leaves that many bits of a float32.
    small = (values + 24576.0) - 24576.0
    return tl.where(tl.abs(values) < 0.015625, small, kept.to(tl.float32, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def round_rows(
    rows: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    used: tl.tensor,
    slots: tl.tensor,
    K: tl.tensor,
    GROUP: tl.constexpr,
    PEAK: tl.constexpr,
    SMALLEST: tl.constexpr,
    SORTED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """One group of one row of `rows` [n, K]: its codes [n, K] and its scale [n, ceil(K / GROUP)].

    With SORTED a row whose entry in `used` is no slot is left alone: nobody wrote it.
    """
    begin(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    if SORTED:  # noqa: SIM102 - a compile-time branch round a load
        if tl.load(used + row) >= slots:
            return
    columns = group * GROUP + tl.arange(0, GROUP)
    values = tl.load(rows + row * K + columns, mask=columns < K, other=0.0).to(tl.float32)
    # NaN must reach the scale: a maximum that drops it would make the group finite again.
    has_nan = tl.max((values != values).to(tl.int32), axis=0) > 0  # noqa: PLR0124 - NaN alone differs from itself
    peak = tl.maximum(tl.max(tl.abs(values), axis=0), SMALLEST)
    scale = tl.where(has_nan, float("nan"), peak / PEAK)
    scaled = tl.minimum(tl.maximum(values / scale, -PEAK), PEAK)
    tl.store(codes + row * K + columns, nearest_code(scaled).to(codes.dtype.element_ty), mask=columns < K)
    tl.store(scales + row * tl.num_programs(1) + group, scale)


def round_to_codes(rows: Tensor, alignment: Alignment | None, slots: int, launch: dict[str, bool]) -> tuple[Tensor, Tensor]:
    """Codes and group scales of rows; of those that hold a slot, with an alignment."""
    groups = triton.cdiv(rows.shape[1], SCALE_BLOCK)
    codes = torch.empty_like(rows, dtype=FLOAT8)
    scales = torch.empty((rows.shape[0], groups), dtype=torch.float32, device=rows.device)
    used = scales if alignment is None else alignment.slots
    round_rows[(rows.shape[0], groups)](
        rows, codes, scales, used, slots, rows.shape[1], GROUP=SCALE_BLOCK, PEAK=FLOAT8_MAX, SMALLEST=SMALLEST_PEAK,
        SORTED=alignment is not None, num_warps=1, **launch,
    )  # fmt: skip
    return codes, scales
