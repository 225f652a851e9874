"""What there is to compile: every kernel of every plan, with the types and constants that a launch would give it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perfgate.kernels.align import CHUNK, SEGMENT, count_slots, place_slots
from perfgate.kernels.combine import SUM_COLUMNS, own_down_product, sum_slots
from perfgate.kernels.down import down_product
from perfgate.kernels.gate_up import gate_up_product
from perfgate.kernels.problem import SILU, SWIGLU, Activation
from perfgate.kernels.tables import stored_plans
from perfgate.kernels.tiles import DEFAULT_PLANS, Plan, Tiles, Variant

ELEMENTS = {"bfloat16": "bf16", "float16": "fp16"}
EXPERTS = 128
# The hidden and intermediate sizes of the products do not enter the machine code; whether they divide the tiles does.
COMMON_TYPES = {
    "topk_weights": "*fp32",
    "topk_ids": "*i32",
    "sorted_slots": "*i32",
    "block_experts": "*i32",
    "block_count": "*i32",
    "counts": "*i32",
    "slots": "i32",
    "top_k": "i32",
    "experts": "i32",
    "segments": "i32",
    "H": "i32",
    "I": "i32",
    "scaling": "fp32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One kernel with everything that the compiler must know: types, constants, warps and stages.

    `is_product` kernels must use the matrix units on tiles of `rows` rows; `is_atomic` ones must add without waiting. Before
    `least_arch` there is no machine for it.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3
    rows: int = 0
    is_product: bool = False
    is_atomic: bool = False
    is_fp8: bool = False
    least_arch: int = 80


def recipes() -> tuple[Recipe, ...]:
    """Every kernel of every default and tuned plan, for both 16-bit types and both kinds of layer; each once."""
    from perfgate.kernels.quantised_recipes import fp8_recipes, mxfp4_recipes  # noqa: PLC0415 - it imports what stands here

    plans = dict.fromkeys((*DEFAULT_PLANS, *stored_plans()))
    made = [recipe for plan in plans for dtype in ELEMENTS for recipe in _plan_recipes(plan, dtype)]
    made += list(_alignment_recipes())
    made += [recipe for dtype in ELEMENTS for recipe in (*fp8_recipes(dtype), *mxfp4_recipes(dtype))]
    return tuple({recipe.name: recipe for recipe in made}.values())


def _plan_recipes(plan: Plan, dtype: str) -> Iterator[Recipe]:
    for activation in (SWIGLU, SILU):
        yield _gate_up(plan, dtype, activation)
        has_bias = activation is SWIGLU
        if plan.variant is Variant.OWNER:
            yield _owner(plan.down, dtype, has_bias=has_bias)
        else:
            for is_atomic in (False, True):
                yield _down(plan.down, dtype, has_bias=has_bias, is_atomic=is_atomic, is_direct=plan.is_direct)
    yield _sum(dtype)


def _label(tiles: Tiles) -> str:
    return (
        f"{tiles.m}x{tiles.n}x{tiles.k}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
        + ("tma" if tiles.tma else "")
        + ("short" if tiles.short else "")
    )


def _sizes(tiles: Tiles) -> dict[str, Any]:
    return {
        "BLOCK_M": tiles.m,
        "BLOCK_N": tiles.n,
        "BLOCK_K": tiles.k,
        "GROUP_M": tiles.group_m,
        "EVEN_K": True,
        "SHORT_BLOCKS": tiles.short,
        "OVERLAP": True,
    }


def _tensors(dtype: str, tiles: Tiles, *, is_tma: bool) -> dict[str, str]:
    """Types of the tensors in the layer's dtype, with tile descriptors where the tensor copy engine reads."""
    pointer = f"*{ELEMENTS[dtype]}"
    types = dict.fromkeys(
        ("hidden", "weight", "weight_tiles", "bias", "inner", "inner_tiles", "inner_short_tiles", "target", "partial", "out"),
        pointer,
    )
    if is_tma:
        types["weight_tiles"] = f"tensordesc<{ELEMENTS[dtype]}[{tiles.n}, {tiles.k}]>"
        types["inner_short_tiles"] = f"tensordesc<{ELEMENTS[dtype]}[{tiles.m // 2}, {tiles.k}]>"
        types["inner_tiles"] = f"tensordesc<{ELEMENTS[dtype]}[{tiles.m}, {tiles.k}]>"
    return COMMON_TYPES | types


def _gate_up(plan: Plan, dtype: str, activation: Activation) -> Recipe:
    tiles, is_direct = plan.gate_up, plan.is_direct or plan.variant is Variant.OWNER
    is_tma = tiles.tma and activation.interleaved
    constants = {
        "INTERLEAVED": activation.interleaved,
        "HAS_BIAS": activation is SWIGLU,
        "WEIGHT_ON_INPUT": False,
        "ALPHA": activation.alpha,
        "LIMIT": activation.limit or 0.0,
        "SHIFT": activation.shift,
        "DIRECT": is_direct,
        "TMA": is_tma,
    }
    types = _tensors(dtype, tiles, is_tma=is_tma)
    return Recipe(
        name=f"gate_up/{activation.name}/{dtype}/{_label(tiles)}" + ("/direct" if is_direct else ""),
        kernel=gate_up_product,
        types=types | {"block_count": "*i32"},
        constants=constants | _sizes(tiles),
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.m,
        is_product=True,
    )


def _down(tiles: Tiles, dtype: str, *, has_bias: bool, is_atomic: bool, is_direct: bool) -> Recipe:
    types = _tensors(dtype, tiles, is_tma=tiles.tma)
    constants = {"HAS_BIAS": has_bias, "WEIGHT_ON_INPUT": False, "ATOMIC": is_atomic, "DIRECT": is_direct, "TMA": tiles.tma}
    return Recipe(
        name=f"down/{'atomic32' if is_atomic else 'slots'}/{'bias' if has_bias else 'plain'}/{dtype}/{_label(tiles)}"
        + ("/direct" if is_direct else ""),
        kernel=down_product,
        types=types | ({"target": "*fp32"} if is_atomic else {}),
        constants=constants | _sizes(tiles),
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.m,
        is_product=True,
        is_atomic=is_atomic,
    )


def _owner(tiles: Tiles, dtype: str, *, has_bias: bool) -> Recipe:
    sizes = {"ROWS": 16, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "EVEN_K": False, "OVERLAP": True}
    return Recipe(
        name=f"down/owner/{'bias' if has_bias else 'plain'}/{dtype}/{_label(tiles)}",
        kernel=own_down_product,
        types=_tensors(dtype, tiles, is_tma=False),
        constants=sizes | {"TOP_K": 4, "HAS_BIAS": has_bias, "WEIGHT_ON_INPUT": False},
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.m,
        is_product=True,
    )


def _sum(dtype: str) -> Recipe:
    types = COMMON_TYPES | {"partial": f"*{ELEMENTS[dtype]}", "out": f"*{ELEMENTS[dtype]}"}
    return Recipe(
        name=f"sum/{dtype}", kernel=sum_slots, types=types, constants={"TOP_K": 4, "BLOCK_N": SUM_COLUMNS, "OVERLAP": True}
    )


def _alignment_recipes() -> Iterator[Recipe]:
    sizes: dict[str, Any] = {"SEGMENT": SEGMENT, "CHUNK": CHUNK, "OVERLAP": True}
    yield Recipe(name="align/count", kernel=count_slots, types=COMMON_TYPES, constants=sizes)
    for counted in (False, True):
        constants = sizes | {"EXPERTS": EXPERTS, "SEGMENTS": 16 if counted else 1, "BLOCK_M": 64, "COUNTED": counted}
        name = "align/place/counted" if counted else "align/place"
        yield Recipe(name=name, kernel=place_slots, types=COMMON_TYPES, constants=constants)
