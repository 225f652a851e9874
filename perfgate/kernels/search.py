"""One small search space and one procedure for every subject, so that no side wins by being tuned harder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from perfgate.kernels.tiles import Plan, Tiles, Variant

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
GROUPS = (1, 32)
OWNER_DOWN = (
    Tiles(m=16, n=16, k=128, stages=6),
    Tiles(m=16, n=32, k=128, stages=5),
    Tiles(m=16, n=16, k=256, stages=4),
    Tiles(m=16, n=32, k=256, stages=4),
)


def space(rows_per_expert: float) -> tuple[Tiles, ...]:
    """Tiles worth trying for a mean number of rows per active expert."""
    if rows_per_expert <= 4:
        return FEW_ROWS
    if rows_per_expert <= 16:
        return FEW_ROWS + SOME_ROWS
    return SOME_ROWS + MANY_ROWS[2:] if rows_per_expert <= 64 else MANY_ROWS


def search(variant: Variant, tiles: tuple[Tiles, ...], seconds: Callable[[Plan], float], *, is_ours: bool) -> Plan:
    """Greedy search: both products alike, the second alone, the tensor copy engine, launches, row tiles that share columns."""
    best = min((Plan(variant=variant, gate_up=t, down=t) for t in tiles), key=seconds)
    for stage in (_downs, _engines, _launches if is_ours else _nothing, _groups):
        best = min((best, *stage(best, tiles)), key=seconds)
    return best


def _downs(plan: Plan, tiles: tuple[Tiles, ...]) -> Iterator[Plan]:
    for other in tiles:
        if other.m == plan.gate_up.m and other != plan.down:
            yield replace(plan, down=other)


def _groups(plan: Plan, tiles: tuple[Tiles, ...]) -> Iterator[Plan]:
    del tiles
    for group_m in GROUPS if plan.gate_up.m >= 64 else ():
        yield replace(plan, gate_up=replace(plan.gate_up, group_m=group_m))
        yield replace(plan, down=replace(plan.down, group_m=group_m))


def _engines(plan: Plan, tiles: tuple[Tiles, ...]) -> Iterator[Plan]:
    """The tensor copy engine for the second product, for both (which only some subjects have)."""
    del tiles
    if plan.gate_up.m >= 64:
        fast_down = replace(plan, down=replace(plan.down, tma=True))
        yield fast_down
        yield replace(fast_down, gate_up=replace(plan.gate_up, tma=True))


def _launches(plan: Plan, tiles: tuple[Tiles, ...]) -> Iterator[Plan]:
    """How our kernels are launched, which upstream fixes: in sequence or overlapped, sorted or each slot by
    itself, half-filled blocks at half the height or not.
    """
    yield replace(plan, is_overlapped=False)
    if plan.gate_up.m >= 64:
        short = replace(plan, gate_up=replace(plan.gate_up, short=True), down=replace(plan.down, short=True))
        yield short
        yield replace(short, is_overlapped=False)
    if plan.gate_up.m == 16 and plan.variant is Variant.SLOTS:
        yield from (Plan(variant=plan.variant, gate_up=t, down=t, is_direct=True) for t in tiles if t.m == 16)


def _nothing(plan: Plan, tiles: tuple[Tiles, ...]) -> tuple[Plan, ...]:
    del plan, tiles
    return ()


def owner_plans(tiles: tuple[Tiles, ...]) -> Iterator[Plan]:
    """Plans in which one program owns a token's columns."""
    for gate_up in tiles:
        if (gate_up.m, gate_up.n, gate_up.k) == (16, 64, 128):
            yield from (Plan(variant=Variant.OWNER, gate_up=gate_up, down=down) for down in OWNER_DOWN)
