"""What there is to compile for layers with quantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from perfgate.kernels import fp8, mxfp4
from perfgate.kernels.fp8_rounding import TOGETHER, round_rows
from perfgate.kernels.problem import MICRO_BLOCK, SCALE_BLOCK, SILU, SWIGLU, Activation
from perfgate.kernels.recipes import COMMON_TYPES, ELEMENTS, Recipe
from perfgate.kernels.reference import FLOAT8_MAX, SMALLEST_PEAK
from perfgate.kernels.search import SPACES, first_plans
from perfgate.kernels.tables import stored_plans
from perfgate.kernels.tiles import QUANTISED_PLANS, Plan, Tiles

HOPPER = 90
ROUNDING = {"PEAK": FLOAT8_MAX, "SMALLEST": SMALLEST_PEAK, "OVERLAP": True}
KINDS = {"fp8": SILU, "mxfp4": SWIGLU}  # DeepSeek's layers, and gpt-oss's


def _types(dtype: str) -> dict[str, str]:
    own = dict.fromkeys(("bias", "inner", "target", "rows", "hidden"), f"*{ELEMENTS[dtype]}")
    return COMMON_TYPES | own | {"used": "*i32", "height": "i32", "K": "i32"}


def _epilogue(activation: Activation) -> dict[str, Any]:
    constants = {"ALPHA": activation.alpha, "LIMIT": activation.limit or 0.0, "SHIFT": activation.shift}
    return {"INTERLEAVED": activation.interleaved, **constants}


def fp8_recipes(dtype: str) -> Iterator[Recipe]:
    """8-bit floats came with compute capability 8.9: Hopper among our architectures."""
    types = _fp8_types(dtype)
    for is_sorted in (False, True):
        constants = {"GROUP": SCALE_BLOCK, "TOGETHER": TOGETHER, "SORTED": is_sorted, **ROUNDING}
        name = f"fp8/round/{dtype}" + ("/sorted" if is_sorted else "")
        yield Recipe(name=name, kernel=round_rows, types=types, constants=constants, least_arch=HOPPER)
    for plan, activations in _plans("fp8", dtype):
        for activation in activations:
            yield _fp8_gate_up(plan, dtype, activation)
            yield _fp8_down(plan, dtype, activation)


def _fp8_types(dtype: str) -> dict[str, str]:
    codes = dict.fromkeys(("codes", "weight"), "*fp8e4nv")
    return _types(dtype) | codes | dict.fromkeys(("scales", "row_scales", "weight_scales", "inner_scales"), "*fp32")


def _fp8_gate_up(plan: Plan, dtype: str, activation: Activation) -> Recipe:
    has_codes, is_interleaved = fp8.stores_codes(plan), activation.interleaved
    constants = {
        "ONE_SCALE": fp8.has_one_scale(plan.gate_up, is_contiguous=is_interleaved), "STORES_CODES": has_codes,
        "PAIRED": fp8.is_paired(plan.gate_up, SCALE_BLOCK, is_interleaved=is_interleaved), **_epilogue(activation),
    }  # fmt: skip
    made = _fp8_product("gate_up", plan, plan.gate_up, dtype, activation)
    return replace(
        made,
        name=made.name + ("/codes" if has_codes else ""),
        kernel=fp8.fp8_gate_up_product,
        types=made.types | ({"inner": "*fp8e4nv"} if has_codes else {}),
        constants=made.constants | constants,
    )


def _fp8_down(plan: Plan, dtype: str, activation: Activation) -> Recipe:
    made = _fp8_product("down", plan, plan.down, dtype, activation)
    return replace(
        made,
        kernel=fp8.fp8_down_product,
        types=made.types | ({} if plan.down.rounds else {"inner": "*fp8e4nv"}),
        constants=made.constants | {"ONE_SCALE": fp8.has_one_scale(plan.down, is_contiguous=True)},
    )


def _fp8_product(product: str, plan: Plan, tiles: Tiles, dtype: str, activation: Activation) -> Recipe:
    """What both products have; the kernel is yet to be named."""
    label = f"{dtype}/{tiles.m}x{tiles.n}g{tiles.group_m}w{tiles.warps}s{tiles.stages}{'rounds' if tiles.rounds else ''}"
    return Recipe(
        name=f"fp8/{product}/{activation.name}/{label}{'/direct' if plan.is_direct else ''}",
        kernel=None,
        types=_fp8_types(dtype),
        constants={
            "BLOCK": SCALE_BLOCK, "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "GROUP_M": tiles.group_m, "DIRECT": plan.is_direct,
            "ROUNDS": tiles.rounds, "SWAPPED": fp8.is_swapped(tiles), "EVEN_K": True, "HAS_BIAS": activation is SWIGLU,
            **ROUNDING,
        },
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.n if fp8.is_swapped(tiles) else tiles.m,
        is_product=True,
        is_fp8=True,
        least_arch=HOPPER,
    )  # fmt: skip


def _plans(quant: str, dtype: str) -> Iterator[tuple[Plan, tuple[Activation, ...]]]:
    """Default and stored plans for both kinds of layer; the rest of the search space for one, and one dtype."""
    known = tuple(dict.fromkeys((*QUANTISED_PLANS[quant], *stored_plans(quant))))
    yield from ((plan, (SWIGLU, SILU)) for plan in known)
    if dtype == "bfloat16":
        tiles = tuple(dict.fromkeys(each for part in SPACES[quant] for each in part))
        yield from ((plan, (KINDS[quant],)) for plan in dict.fromkeys(first_plans(tiles, quant)) if plan not in known)


def mxfp4_recipes(dtype: str) -> Iterator[Recipe]:
    """4-bit weights become 16-bit ones in registers, on any architecture."""
    types = _types(dtype) | {"pairs": "*u8", "scales": "*u8"}
    for plan, activations in _plans("mxfp4", dtype):
        for activation in activations:
            yield from (_mxfp4_recipe(plan, dtype, activation, types, is_gate_up=first) for first in (True, False))


def _mxfp4_recipe(plan: Plan, dtype: str, activation: Activation, types: dict[str, str], *, is_gate_up: bool) -> Recipe:
    tiles = plan.gate_up if is_gate_up else plan.down
    constants = {
        "MICRO": MICRO_BLOCK, "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "GROUP_M": tiles.group_m,
        "DIRECT": plan.is_direct, "SWAPPED": mxfp4.is_swapped(tiles), "IN_PAIRS": dtype == "bfloat16",
        "EVEN_K": True, "HAS_BIAS": activation is SWIGLU, "OVERLAP": True,
    }  # fmt: skip
    label = f"{dtype}/{tiles.m}x{tiles.n}x{tiles.k}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
    return Recipe(
        name=f"mxfp4/{'gate_up' if is_gate_up else 'down'}/{activation.name}/{label}{'/direct' if plan.is_direct else ''}",
        kernel=mxfp4.mxfp4_gate_up_product if is_gate_up else mxfp4.mxfp4_down_product,
        types=types,
        constants=constants | (_epilogue(activation) if is_gate_up else {}),
        warps=tiles.warps,
        stages=tiles.stages,
        rows=max(tiles.m, tiles.n) if mxfp4.is_swapped(tiles) else tiles.m,
        is_product=True,
    )
