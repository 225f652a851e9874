"""What every kernel begins with: its place among the tiles, and its place behind the kernel before it."""

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
