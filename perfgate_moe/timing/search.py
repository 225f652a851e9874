"""One small search space and one procedure for every subject, so that all are tuned with the same effort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType

from perfgate_moe.layer.tiles import TilePlan, Tiles, Variant

FEW_ROWS = (
    Tiles(m=16, n=32, k=64, group_m=1, stages=4),
    Tiles(m=16, n=32, k=128, group_m=1, stages=5),
    Tiles(m=16, n=64, k=64, group_m=1, stages=5),
    Tiles(m=16, n=64, k=128, group_m=1, stages=4),
    Tiles(m=16, n=128, k=64, group_m=1, stages=4),
    Tiles(m=16, n=128, k=128, group_m=1, stages=3),
)
SOME_ROWS = (
    Tiles(m=32, n=64, k=128, group_m=1, stages=4),
    Tiles(m=32, n=128, k=64, group_m=1, stages=4),
    Tiles(m=64, n=64, k=128, group_m=4, stages=4),
    Tiles(m=64, n=128, k=64, group_m=4, stages=4),
    Tiles(m=64, n=256, k=64, group_m=4, warps=4, stages=3),
)
MANY_ROWS = (
    Tiles(m=64, n=128, k=64, group_m=8, stages=4),
    Tiles(m=64, n=256, k=64, group_m=8, stages=4),
    Tiles(m=128, n=128, k=64, group_m=8, warps=8, stages=4),
    Tiles(m=128, n=256, k=64, group_m=8, warps=8, stages=3),
    Tiles(m=128, n=256, k=64, group_m=8, warps=8, stages=4),
)
# 8-bit products go 128 deep. Two sums stand in registers, the step's and the total, so a tile is half as large as in 16 bits.
FP8_FEW_ROWS = (
    Tiles(m=16, n=32, k=128, group_m=1, stages=5),
    Tiles(m=16, n=64, k=128, group_m=1, stages=4),
    Tiles(m=16, n=64, k=128, group_m=1, stages=6),
    Tiles(m=16, n=128, k=128, group_m=1, stages=3),
    Tiles(m=16, n=128, k=128, group_m=1, stages=5),
    Tiles(m=16, n=256, k=128, group_m=1, stages=3),
)
FP8_SOME_ROWS = (
    Tiles(m=32, n=64, k=128, group_m=1, stages=4),
    Tiles(m=32, n=128, k=128, group_m=1, stages=4),
    Tiles(m=64, n=64, k=128, group_m=8, stages=4),
    Tiles(m=64, n=128, k=128, group_m=8, stages=3),
)
FP8_MANY_ROWS = (
    Tiles(m=64, n=128, k=128, group_m=8, stages=3),
    Tiles(m=64, n=128, k=128, group_m=8, stages=4),
    Tiles(m=64, n=256, k=128, group_m=8, warps=8, stages=3),
    Tiles(m=128, n=64, k=128, group_m=8, stages=4),
    Tiles(m=128, n=128, k=128, group_m=8, warps=8, stages=3),
    Tiles(m=128, n=128, k=128, group_m=8, warps=8, stages=4),
)
# 4-bit weights lie in bricks of 64 by 64, which are read in order.
MXFP4_FEW_ROWS = (
    Tiles(m=16, n=64, k=64, group_m=1, stages=6),
    Tiles(m=16, n=64, k=128, group_m=1, stages=4),
    Tiles(m=16, n=64, k=128, group_m=1, stages=6),
    Tiles(m=16, n=64, k=256, group_m=1, stages=3),
    Tiles(m=16, n=64, k=256, group_m=1, stages=4),
    Tiles(m=16, n=64, k=256, group_m=1, stages=6),
    Tiles(m=16, n=64, k=512, group_m=1, stages=3),
    Tiles(m=16, n=128, k=64, group_m=1, stages=5),
    Tiles(m=16, n=128, k=128, group_m=1, stages=4),
    Tiles(m=16, n=128, k=128, group_m=1, warps=8, stages=4),
)
MXFP4_SOME_ROWS = (
    Tiles(m=32, n=64, k=128, group_m=1, stages=4),
    Tiles(m=32, n=128, k=128, group_m=1, stages=3),
    Tiles(m=32, n=128, k=64, group_m=1, stages=5),
    Tiles(m=64, n=64, k=128, group_m=8, stages=3),
    Tiles(m=64, n=128, k=64, group_m=8, stages=4),
)
MXFP4_MANY_ROWS = (
    Tiles(m=64, n=128, k=64, group_m=8, stages=4),
    Tiles(m=64, n=128, k=64, group_m=8, stages=6),
    Tiles(m=64, n=128, k=128, group_m=8, stages=3),
    Tiles(m=64, n=256, k=64, group_m=8, warps=8, stages=4),
    Tiles(m=128, n=64, k=64, group_m=8, stages=4),
    Tiles(m=128, n=128, k=64, group_m=8, warps=8, stages=4),
    Tiles(m=256, n=128, k=64, group_m=8, warps=8, stages=4),
)
SPACES = MappingProxyType(
    {
        "none": (FEW_ROWS, SOME_ROWS, MANY_ROWS),
        "fp8": (FP8_FEW_ROWS, FP8_SOME_ROWS, FP8_MANY_ROWS),
        "mxfp4": (MXFP4_FEW_ROWS, MXFP4_SOME_ROWS, MXFP4_MANY_ROWS),
    }
)
# A second product of one or two steps walks over column tiles: its pipeline lasts as long as the walk.
FP8_WALKS = tuple(Tiles(m=64, n=128, k=128, group_m=8, stages=2, walk=walk) for walk in (7, 14, 28))
GROUPS = (1, 32)
MOST_ROUNDED_ROWS = 64
OWNER_DOWN = (
    Tiles(m=16, n=16, k=128, stages=6),
    Tiles(m=16, n=32, k=128, stages=5),
    Tiles(m=16, n=16, k=256, stages=4),
    Tiles(m=16, n=32, k=256, stages=4),
)


def space(rows_per_expert: float, quant: str = "none") -> tuple[Tiles, ...]:
    """Tiles worth trying for a mean number of rows per active expert and a format of weights, each once."""
    few, some, many = SPACES[quant]
    if rows_per_expert <= 4:
        return few
    if rows_per_expert <= 16:
        return few + some
    return tuple(dict.fromkeys(some + many[2:] if rows_per_expert <= 64 else many))


def search(
    variant: Variant, tiles: tuple[Tiles, ...], seconds: Callable[[TilePlan], float], *, is_ours: bool, quant: str = "none"
) -> TilePlan:
    """Greedy search: both products alike, the second alone, the tensor copy engine, launches, row tiles that share columns.

    Our products of quantised weights have no tensor copies. For those both sides look at the second product again after the
    launches: slots by themselves are another question.
    """
    best = min((TilePlan(variant=variant, gate_up=t, down=t) for t in tiles), key=seconds)
    engines = _nothing if is_ours and quant != "none" else _engines
    launches = _LAUNCHES[quant] if is_ours else _nothing
    again = (_nothing,) if quant == "none" else (_downs,)
    for stage in (_downs, engines, launches, *again, _groups):
        best = min((best, *stage(best, tiles)), key=seconds)
    return best


def search_alike(tiles: tuple[Tiles, ...], seconds: Callable[[TilePlan], float]) -> TilePlan:
    """The same for a subject with one cut for both products: the tiles, then row tiles that share columns."""
    best = min(alike_plans(tiles), key=seconds)
    return min((best, *alike_groups(best)), key=seconds)


def alike_plans(tiles: tuple[Tiles, ...]) -> tuple[TilePlan, ...]:
    """Plans with one cut for both products."""
    return tuple(TilePlan(variant=Variant.SLOTS, gate_up=t, down=t) for t in tiles)


def alike_groups(plan: TilePlan) -> tuple[TilePlan, ...]:
    """Such a plan with other numbers of row tiles that share columns, where there are enough rows."""
    return alike_plans(tuple(replace(plan.gate_up, group_m=group) for group in GROUPS if plan.gate_up.m >= 64))


def _downs(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    for other in tiles:
        other = replace(other, rounds=plan.down.rounds, tma=plan.down.tma)  # noqa: PLW2901 - the same tiles otherwise
        if other.m == plan.gate_up.m and other != plan.down:
            yield replace(plan, down=other)


def _groups(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    del tiles
    for group_m in GROUPS if plan.gate_up.m >= 64 else ():
        yield replace(plan, gate_up=replace(plan.gate_up, group_m=group_m))
        yield replace(plan, down=replace(plan.down, group_m=group_m))


def _engines(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    """The tensor copy engine for the second product, for both (which only some subjects have)."""
    del tiles
    if plan.gate_up.m >= 64:
        fast_down = replace(plan, down=replace(plan.down, tma=True))
        yield fast_down
        yield replace(fast_down, gate_up=replace(plan.gate_up, tma=True))


def _launches(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    """How our kernels are launched, which upstream fixes: in sequence or overlapped, sorted or each slot by
    itself, half-filled blocks at half the height or not.
    """
    yield replace(plan, is_overlapped=False)
    if plan.gate_up.m >= 64:
        short = replace(plan, gate_up=replace(plan.gate_up, short=True), down=replace(plan.down, short=True))
        yield short
        yield replace(short, is_overlapped=False)
    if plan.gate_up.m == 16 and plan.variant is Variant.SLOTS:
        yield from direct_plans(tiles)


def direct_plans(tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    """Plans in which every slot is a block by itself."""
    yield from (TilePlan(variant=Variant.SLOTS, gate_up=t, down=t, is_direct=True) for t in tiles if t.m == 16)


def _fp8_launches(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    """Where rows are rounded, besides how kernels are launched."""
    yield replace(plan, is_overlapped=False)
    yield from rounding_plans(plan)
    yield from walking_plans(plan, tiles)
    if plan.gate_up.m == 16:
        for direct in direct_plans(tiles):
            yield direct
            yield from rounding_plans(direct)


def walking_plans(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    """Second products that walk over column tiles, behind the plan's first product or those of their own height."""
    for down in FP8_WALKS if plan.gate_up.m >= FP8_WALKS[0].m else ():
        for first in dict.fromkeys((plan.gate_up, *tiles)):
            if first.m == down.m:
                yield replace(plan, gate_up=first, down=down)


def rounding_plans(plan: TilePlan) -> Iterator[TilePlan]:
    """The plan with products that round the rows they read themselves: the first, the second, both.

    Not for the largest tiles, whose registers are full.
    """
    if plan.gate_up.m > MOST_ROUNDED_ROWS:
        return
    gate_up, down = replace(plan.gate_up, rounds=True), replace(plan.down, rounds=True)
    yield replace(plan, gate_up=gate_up)
    yield replace(plan, down=down)
    yield replace(plan, gate_up=gate_up, down=down)


def _mxfp4_launches(plan: TilePlan, tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    yield replace(plan, is_overlapped=False)
    if plan.gate_up.m == 16:
        yield from direct_plans(tiles)


def _nothing(plan: TilePlan, tiles: tuple[Tiles, ...]) -> tuple[TilePlan, ...]:
    del plan, tiles
    return ()


_LAUNCHES = MappingProxyType({"none": _launches, "fp8": _fp8_launches, "mxfp4": _mxfp4_launches})


def first_plans(tiles: tuple[Tiles, ...], quant: str) -> Iterator[TilePlan]:
    """Our plans of quantised weights whose machine code differs: what is worth compiling before a search begins."""
    for plan in (TilePlan(variant=Variant.SLOTS, gate_up=t, down=t) for t in tiles):
        sorted_and_direct = (plan, replace(plan, is_direct=True)) if plan.gate_up.m == 16 else (plan,)
        for each in sorted_and_direct:
            yield each
            if quant == "fp8":
                yield from list(rounding_plans(each))[-1:]
    # How far a product walks is no part of its machine code.
    walking = {replace(each, walk=1): each for each in FP8_WALKS} if quant == "fp8" else {}
    for down in walking.values():
        yield from [TilePlan(variant=Variant.SLOTS, gate_up=t, down=down) for t in tiles if t.m == down.m][:1]


def owner_plans(tiles: tuple[Tiles, ...]) -> Iterator[TilePlan]:
    """Plans in which one program owns a token's columns."""
    for gate_up in tiles:
        if (gate_up.m, gate_up.n, gate_up.k) == (16, 64, 128):
            yield from (TilePlan(variant=Variant.OWNER, gate_up=gate_up, down=down) for down in OWNER_DOWN)
