"""How a layer is cut into tiles, and which cut is taken for which device, shape and number of tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum

import torch

from perfgate_moe.errors import MoeInputError
from perfgate_moe.layer.problem import Problem


class Variant(StrEnum):
    """How the experts of a token come together."""

    SLOTS = "slots"  # every slot a row of its own, then one fixed-order sum: deterministic
    OWNER = "owner"  # one program owns a token's columns: deterministic, for few tokens
    ATOMIC32 = "atomic32"  # relaxed float32 atomics: the order of additions is not fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The cut of one product: tile sizes, row tiles that share columns in L2, warps, pipeline stages, tensor copy
    engine, and whether blocks filled to at most their middle are computed at half the height (m of 32 and more).

    `rounds` is for 8-bit weights: the product rounds the 16-bit rows that it reads, and no launch before it does. Such
    products have k = 128, the depth of a scale, and quantised ones neither `tma` nor `short`. With `walk` above 1 a program of
    the second product of 8-bit weights keeps its rows and computes so many column tiles one after another.
    """

    m: int
    n: int
    k: int
    group_m: int = 8
    warps: int = 4
    stages: int = 4
    tma: bool = False
    short: bool = False
    rounds: bool = False
    walk: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """How to run one layer. Both products share `gate_up.m`; OWNER ignores `down.m` and `down.group_m`.

    With `is_direct` nothing is sorted: every slot is a block by itself, which pays while hardly any expert has two slots.
    `is_overlapped` starts each kernel while the one before it drains (Hopper and later).
    """

    variant: Variant
    gate_up: Tiles
    down: Tiles
    is_direct: bool = False
    is_overlapped: bool = True

    def __post_init__(self) -> None:
        if self.variant is not Variant.OWNER and self.gate_up.m != self.down.m:
            raise MoeInputError(f"plan {self}: both products read one alignment, so their m must agree")


DECODE = TilePlan(
    variant=Variant.SLOTS,
    gate_up=Tiles(m=16, n=64, k=128, group_m=1),
    down=Tiles(m=16, n=64, k=128, group_m=1),
    is_direct=True,
)
OWNER = TilePlan(
    variant=Variant.OWNER,
    gate_up=Tiles(m=16, n=64, k=128, group_m=1),
    down=Tiles(m=16, n=32, k=128, stages=5),
)
SMALL = TilePlan(
    variant=Variant.SLOTS,
    gate_up=Tiles(m=16, n=64, k=128, group_m=1),
    down=Tiles(m=16, n=64, k=128, group_m=1),
)
MEDIUM = TilePlan(
    variant=Variant.SLOTS,
    gate_up=Tiles(m=64, n=128, k=64, group_m=4, tma=True),
    down=Tiles(m=64, n=128, k=64, group_m=4, tma=True),
)
LARGE = TilePlan(
    variant=Variant.SLOTS,
    gate_up=Tiles(m=128, n=256, k=64, warps=8, tma=True, short=True),
    down=Tiles(m=128, n=256, k=64, warps=8, tma=True, short=True),
)
# Off Hopper, 128 by 256 leave too few registers for the epilogue of atomics (`perfgate kernels build` finds spills).
LARGE_NARROW = TilePlan(
    variant=Variant.SLOTS,
    gate_up=Tiles(m=128, n=128, k=64, warps=8),
    down=Tiles(m=128, n=128, k=64, warps=8),
)
DEFAULT_PLANS = (DECODE, OWNER, SMALL, MEDIUM, LARGE, LARGE_NARROW)
DIRECT_TOKENS = 4
LATE_CAPABILITY = (9, 0)  # Hopper brought the tensor copy engine and overlapped launches


def is_late(device: torch.device) -> bool:
    """Whether a device is Hopper or later; the interpreter, which has no device, can do what they can."""
    return bool(device.type != "cuda" or torch.cuda.get_device_capability(device) >= LATE_CAPABILITY)


def has_warpgroups(device: torch.device) -> bool:
    """Whether a device is Hopper, alone in multiplying with whole warpgroups; the interpreter takes Hopper's plans."""
    return bool(device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == LATE_CAPABILITY[0])


# Layers with quantised weights. 8-bit products are 128 deep; 4-bit ones read bricks of 64 by 64.
_FP8_FEW = Tiles(m=16, n=64, k=128, group_m=1, rounds=True)
_FP8_SOME = Tiles(m=16, n=128, k=128, group_m=1)
_FP8_MANY = Tiles(m=64, n=128, k=128, stages=3)
FP8_DECODE = TilePlan(variant=Variant.SLOTS, gate_up=_FP8_FEW, down=_FP8_FEW, is_direct=True)
FP8_SMALL = TilePlan(variant=Variant.SLOTS, gate_up=_FP8_SOME, down=_FP8_SOME)
FP8_LARGE = TilePlan(variant=Variant.SLOTS, gate_up=_FP8_MANY, down=_FP8_MANY)
_MXFP4_FEW = Tiles(m=16, n=64, k=128, group_m=1)
_MXFP4_MANY = Tiles(m=64, n=128, k=64)
MXFP4_DECODE = TilePlan(variant=Variant.SLOTS, gate_up=_MXFP4_FEW, down=_MXFP4_FEW, is_direct=True)
MXFP4_SMALL = TilePlan(variant=Variant.SLOTS, gate_up=_MXFP4_FEW, down=_MXFP4_FEW)
MXFP4_LARGE = TilePlan(variant=Variant.SLOTS, gate_up=_MXFP4_MANY, down=_MXFP4_MANY)
# By format: few tokens, few rows per expert, many.
QUANTISED_PLANS = {
    "fp8": (FP8_DECODE, FP8_SMALL, FP8_LARGE),
    "mxfp4": (MXFP4_DECODE, MXFP4_SMALL, MXFP4_LARGE),
}
MANY_SLOTS_PER_EXPERT = 16


def small_plan(problem: Problem) -> TilePlan:
    """The plan that sorts and serves any number of tokens."""
    return SMALL if problem.scales is None else QUANTISED_PLANS[problem.quant][1]


def default_plan(problem: Problem) -> TilePlan:
    """A reasonable plan without a tuned table: by the mean number of slots per expert."""
    per_expert = problem.topk_ids.numel() / problem.experts
    if problem.scales is not None:
        decode, small, large = QUANTISED_PLANS[problem.quant]
        if problem.tokens <= DIRECT_TOKENS and per_expert <= 1:
            return decode
        return small if per_expert <= MANY_SLOTS_PER_EXPERT else large
    if problem.tokens <= DIRECT_TOKENS and problem.topk_ids.numel() <= problem.experts:
        return DECODE
    if per_expert <= 8:
        return SMALL
    large = LARGE if has_warpgroups(problem.hidden.device) else LARGE_NARROW
    plan = MEDIUM if per_expert <= 64 else large
    return plan if problem.hidden.element_size() == 2 else _for_float32(plan)


def _for_float32(plan: TilePlan) -> TilePlan:
    """Halve the shared memory of a tile for operands of twice the size."""
    return replace(plan, gate_up=replace(plan.gate_up, n=64, k=32, tma=False), down=replace(plan.down, n=64, k=32, tma=False))


def plan_from(entry: dict[str, object]) -> TilePlan:
    """A plan from the JSON that `plan_to` writes."""
    variant, gate_up, down = entry["variant"], entry["gate_up"], entry["down"]
    if not isinstance(gate_up, dict) or not isinstance(down, dict):
        raise MoeInputError("tuned plan: gate_up and down must be tables of tile sizes")
    flags = {name: bool(entry[name]) for name in ("is_direct", "is_overlapped") if name in entry}
    return TilePlan(variant=Variant(str(variant)), gate_up=Tiles(**gate_up), down=Tiles(**down), **flags)


def plan_to(plan: TilePlan) -> dict[str, object]:
    """A plan as JSON values."""
    return asdict(plan)
