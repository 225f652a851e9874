"""What there is to compile: every kernel of every plan, with the types and constants that a launch would give it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from perfgate_moe.layer import fp8, mxfp4
from perfgate_moe.layer.align import CHUNK, SEGMENT, choose_experts, count_slots, place_slots
from perfgate_moe.layer.combine import SUM_COLUMNS, own_down_product, sum_slots
from perfgate_moe.layer.down import down_product
from perfgate_moe.layer.fp8_rounding import TOGETHER, round_rows
from perfgate_moe.layer.gate_up import gate_up_product
from perfgate_moe.layer.problem import ACTIVATIONS, SCALE_BLOCK, SILU, SWIGLU, Activation
from perfgate_moe.layer.reference import FLOAT8_MAX, SMALLEST_PEAK
from perfgate_moe.layer.tables import stored, stored_plans, table_path
from perfgate_moe.layer.tiles import DEFAULT_PLANS, LARGE, LARGE_NARROW, QUANTISED_PLANS, SMALL, TilePlan, Tiles, Variant
from perfgate_moe.timing.search import SPACES, first_plans

ELEMENTS = {"bfloat16": "bf16", "float16": "fp16"}
EXPERTS = 128
AMPERE, HOPPER, BLACKWELL = 80, 90, 100
EVERYWHERE = frozenset({AMPERE, HOPPER, BLACKWELL})
# Tuned plans are built for the architecture of the device that they were tuned on: elsewhere nothing takes them.
MODEL_ARCHS = {"A100": 80, "A800": 80, "H20": 90, "H100": 90, "H200": 90, "H800": 90, "GH200": 90, "B200": 100, "GB200": 100}
DEFAULT_ARCHS = {LARGE: frozenset({HOPPER}), LARGE_NARROW: EVERYWHERE - {HOPPER}}
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
class KernelRecipe:
    """One kernel with everything that the compiler must know: types, constants, warps and stages.

    `is_product` kernels must use the matrix units on tiles of `rows` rows; `is_atomic` ones must add without waiting; in
    `is_woven` ones the bytes of a word must be neighbours in the registers. Before `least_arch` there is no machine for it; on
    other architectures than `archs` nothing launches it.
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
    is_woven: bool = False
    least_arch: int = 80
    archs: frozenset[int] = EVERYWHERE

    def suits(self, arch: int) -> bool:
        """Whether anything launches it on this architecture."""
        return self.least_arch <= arch and arch in self.archs


@dataclass(frozen=True, slots=True, kw_only=True)
class Evenness:
    """Whether the depths of a layer's two products, H and I, are whole steps of their tiles."""

    gate_up: bool
    down: bool


def recipes() -> tuple[KernelRecipe, ...]:
    """Every kernel of every default and tuned plan, for both 16-bit types and both kinds of layer; each once.

    Default plans are for sizes that divide their tiles and for others, and for every architecture; tuned ones as their layer
    launches them, on the architecture that they were tuned on.
    """
    made = [recipe for dtype in ELEMENTS for recipe in (*_default_recipes(dtype), *_tuned_recipes(dtype))]
    made += list(_alignment_recipes())
    made += [recipe for dtype in ELEMENTS for recipe in (*fp8_recipes(dtype), *mxfp4_recipes(dtype))]
    found: dict[str, KernelRecipe] = {}
    for recipe in made:
        known = found.get(recipe.name, recipe)
        found[recipe.name] = replace(known, archs=known.archs | recipe.archs)
    return tuple(found.values())


def _default_recipes(dtype: str) -> Iterator[KernelRecipe]:
    for plan, activation, is_even in product(DEFAULT_PLANS, (SWIGLU, SILU), (True, False)):
        for recipe in _plan_recipes(plan, dtype, activation, Evenness(gate_up=is_even, down=is_even)):
            yield replace(recipe, archs=DEFAULT_ARCHS.get(plan, EVERYWHERE))
    yield _sum(dtype)


def _tuned_recipes(dtype: str) -> Iterator[KernelRecipe]:
    for path in sorted(table_path("any").parent.glob("*.json")):
        for key, entries in stored(path.stem).items():
            *pairs, activation = key.split(",")
            if activation not in ACTIVATIONS:  # quantised layers have recipes of their own
                continue
            sizes = {name: int(value) for name, value in (pair.split("=") for pair in pairs)}
            # What runs sorted where the tuned plan does not, such as atomic32 at one token.
            for plan in dict.fromkeys((*(entry.plan for entry in entries.values()), SMALL)):
                evenness = Evenness(gate_up=sizes["H"] % plan.gate_up.k == 0, down=sizes["I"] % plan.down.k == 0)
                for recipe in _plan_recipes(plan, dtype, ACTIVATIONS[activation], evenness):
                    yield replace(recipe, archs=find_archs(path.stem))


def find_archs(device: str) -> frozenset[int]:
    """The architecture of a device by its name, such as 90 for NVIDIA_H200; all of them for one that is not known."""
    known = [MODEL_ARCHS[word] for word in re.split(r"[_ -]", device) if word in MODEL_ARCHS]
    return frozenset(known[:1]) or EVERYWHERE


def _plan_recipes(plan: TilePlan, dtype: str, activation: Activation, evenness: Evenness) -> Iterator[KernelRecipe]:
    has_bias = activation is not SILU
    yield _gate_up(plan, dtype, activation, is_even=evenness.gate_up)
    if plan.variant is Variant.OWNER:
        yield _owner(plan.down, dtype, has_bias=has_bias, is_even=evenness.down)
        return
    for is_atomic in (False, True):
        yield _down(plan, dtype, has_bias=has_bias, is_atomic=is_atomic, is_even=evenness.down)


def _label(tiles: Tiles, *, is_even: bool) -> str:
    return (
        f"{tiles.m}x{tiles.n}x{tiles.k}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
        + ("tma" if tiles.tma else "")
        + ("short" if tiles.short else "")
        + ("" if is_even else "/uneven")
    )


def _sizes(tiles: Tiles, *, is_even: bool) -> dict[str, Any]:
    return {
        "BLOCK_M": tiles.m,
        "BLOCK_N": tiles.n,
        "BLOCK_K": tiles.k,
        "GROUP_M": tiles.group_m,
        "EVEN_K": is_even,
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


def _gate_up(plan: TilePlan, dtype: str, activation: Activation, *, is_even: bool) -> KernelRecipe:
    tiles, is_direct = plan.gate_up, plan.is_direct or plan.variant is Variant.OWNER
    is_tma = tiles.tma and activation.interleaved
    constants = {
        "INTERLEAVED": activation.interleaved,
        "HAS_BIAS": activation is not SILU,
        "WEIGHT_ON_INPUT": False,
        "ALPHA": activation.alpha,
        "LIMIT": activation.limit or 0.0,
        "SHIFT": activation.shift,
        "DIRECT": is_direct,
        "TMA": is_tma,
    }
    types = _tensors(dtype, tiles, is_tma=is_tma)
    return KernelRecipe(
        name=f"gate_up/{activation.name}/{dtype}/{_label(tiles, is_even=is_even)}" + ("/direct" if is_direct else ""),
        kernel=gate_up_product,
        types=types | {"block_count": "*i32"},
        constants=constants | _sizes(tiles, is_even=is_even),
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.m,
        is_product=True,
    )


def _down(plan: TilePlan, dtype: str, *, has_bias: bool, is_atomic: bool, is_even: bool) -> KernelRecipe:
    tiles, is_direct = plan.down, plan.is_direct
    types = _tensors(dtype, tiles, is_tma=tiles.tma)
    constants = {
        "HAS_BIAS": has_bias,
        "WEIGHT_ON_INPUT": False,
        "ATOMIC": is_atomic,
        "DIRECT": is_direct,
        "TMA": tiles.tma,
        "EIGHTHS": False,
    }
    kind = f"{'atomic32' if is_atomic else 'slots'}/{'bias' if has_bias else 'plain'}"
    return KernelRecipe(
        name=f"down/{kind}/{dtype}/{_label(tiles, is_even=is_even)}" + ("/direct" if is_direct else ""),
        kernel=down_product,
        types=types | ({"target": "*fp32"} if is_atomic else {}),
        constants=constants | _sizes(tiles, is_even=is_even),
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.m,
        is_product=True,
        is_atomic=is_atomic,
    )


def _owner(tiles: Tiles, dtype: str, *, has_bias: bool, is_even: bool) -> KernelRecipe:
    sizes = {"ROWS": 16, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "EVEN_K": is_even, "EIGHTHS": False, "OVERLAP": True}
    return KernelRecipe(
        name=f"down/owner/{'bias' if has_bias else 'plain'}/{dtype}/{_label(tiles, is_even=is_even)}",
        kernel=own_down_product,
        types=_tensors(dtype, tiles, is_tma=False),
        constants=sizes | {"TOP_K": 4, "HAS_BIAS": has_bias, "WEIGHT_ON_INPUT": False},
        warps=tiles.warps,
        stages=tiles.stages,
        rows=tiles.m,
        is_product=True,
    )


def _sum(dtype: str) -> KernelRecipe:
    types = COMMON_TYPES | {"partial": f"*{ELEMENTS[dtype]}", "out": f"*{ELEMENTS[dtype]}"}
    return KernelRecipe(
        name=f"sum/{dtype}", kernel=sum_slots, types=types, constants={"TOP_K": 4, "BLOCK_N": SUM_COLUMNS, "OVERLAP": True}
    )


def _alignment_recipes() -> Iterator[KernelRecipe]:
    sizes: dict[str, Any] = {"SEGMENT": SEGMENT, "CHUNK": CHUNK, "OVERLAP": True}
    yield KernelRecipe(name="align/count", kernel=count_slots, types=COMMON_TYPES, constants=sizes)
    for counted in (False, True):
        constants = sizes | {"EXPERTS": EXPERTS, "SEGMENTS": 16 if counted else 1, "BLOCK_M": 64, "COUNTED": counted}
        name = "align/place/counted" if counted else "align/place"
        yield KernelRecipe(name=name, kernel=place_slots, types=COMMON_TYPES, constants=constants)
    for experts, top_k in ((32, 4), (128, 8)):
        types = COMMON_TYPES | {"scores": "*bf16", "weights": "*fp32", "ids": "*i32"}
        constants = {"TOP_K": top_k, "SLOTS": top_k, "LANES": experts, "OVERLAP": True}
        yield KernelRecipe(name=f"choose/{experts}/{top_k}", kernel=choose_experts, types=types, constants=constants, warps=1)


ROUNDING = {"PEAK": FLOAT8_MAX, "SMALLEST": SMALLEST_PEAK, "OVERLAP": True}
KINDS = {"fp8": SILU, "mxfp4": SWIGLU}  # DeepSeek's layers, and gpt-oss's


def _types(dtype: str) -> dict[str, str]:
    own = dict.fromkeys(("bias", "inner", "target", "rows", "hidden"), f"*{ELEMENTS[dtype]}")
    return COMMON_TYPES | own | {"used": "*i32", "height": "i32", "K": "i32"}


def _epilogue(activation: Activation) -> dict[str, Any]:
    constants = {"ALPHA": activation.alpha, "LIMIT": activation.limit or 0.0, "SHIFT": activation.shift}
    return {"INTERLEAVED": activation.interleaved, **constants}


def fp8_recipes(dtype: str) -> Iterator[KernelRecipe]:
    """8-bit floats came with compute capability 8.9: Hopper among our architectures."""
    types = _fp8_types(dtype)
    for is_sorted in (False, True):
        constants = {"GROUP": SCALE_BLOCK, "TOGETHER": TOGETHER, "SORTED": is_sorted, **ROUNDING}
        name = f"fp8/round/{dtype}" + ("/sorted" if is_sorted else "")
        yield KernelRecipe(name=name, kernel=round_rows, types=types, constants=constants, least_arch=HOPPER)
    for plan, activations in _plans("fp8", dtype):
        for activation in activations:
            yield _fp8_gate_up(plan, dtype, activation)
            yield _fp8_down(plan, dtype, activation)


def _fp8_types(dtype: str) -> dict[str, str]:
    codes = dict.fromkeys(("codes", "weight"), "*fp8e4nv")
    return _types(dtype) | codes | dict.fromkeys(("scales", "row_scales", "weight_scales", "inner_scales"), "*fp32")


def _fp8_gate_up(plan: TilePlan, dtype: str, activation: Activation) -> KernelRecipe:
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


def _fp8_down(plan: TilePlan, dtype: str, activation: Activation) -> KernelRecipe:
    made = _fp8_product("down", plan, plan.down, dtype, activation)
    if plan.down.walk > 1:
        walking = {"tiles": "i32", "inner": "*fp8e4nv"}
        constants = {name: made.constants[name] for name in (*fp8.WALKING, "HAS_BIAS", "OVERLAP")} | {"STEPS": fp8.MOST_STEPS}
        kernel = fp8.fp8_walking_down_product
        return replace(made, name=f"{made.name}/walking", kernel=kernel, types=made.types | walking, constants=constants)
    return replace(
        made,
        kernel=fp8.fp8_down_product,
        types=made.types | ({} if plan.down.rounds else {"inner": "*fp8e4nv"}),
        constants=made.constants | {"ONE_SCALE": fp8.has_one_scale(plan.down, is_contiguous=True)},
    )


def _fp8_product(product: str, plan: TilePlan, tiles: Tiles, dtype: str, activation: Activation) -> KernelRecipe:
    """What both products have; the kernel is yet to be named."""
    label = f"{dtype}/{tiles.m}x{tiles.n}g{tiles.group_m}w{tiles.warps}s{tiles.stages}{'rounds' if tiles.rounds else ''}"
    return KernelRecipe(
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


def _plans(quant: str, dtype: str) -> Iterator[tuple[TilePlan, tuple[Activation, ...]]]:
    """Default and stored plans for both kinds of layer; the rest of the search space for one, and one dtype."""
    known = tuple(dict.fromkeys((*QUANTISED_PLANS[quant], *stored_plans(quant))))
    yield from ((plan, (SWIGLU, SILU)) for plan in known)
    if dtype == "bfloat16":
        tiles = tuple(dict.fromkeys(each for part in SPACES[quant] for each in part))
        yield from ((plan, (KINDS[quant],)) for plan in dict.fromkeys(first_plans(tiles, quant)) if plan not in known)


def mxfp4_recipes(dtype: str) -> Iterator[KernelRecipe]:
    """4-bit weights become 16-bit ones in registers: in bfloat16 on Hopper by assembly, elsewhere without."""
    types = _types(dtype) | {"codes": "*u8", "scales": "*u8"}
    for plan, activations in _plans("mxfp4", dtype):
        for activation, is_gate_up in product(activations, (True, False)):
            recipe = _mxfp4_recipe(plan, dtype, activation, types, is_gate_up=is_gate_up)
            yield recipe
            if plan in QUANTISED_PLANS["mxfp4"]:
                constants = recipe.constants | {"IN_PAIRS": False}
                name, archs = f"{recipe.name}/unwoven", EVERYWHERE - {HOPPER}
                yield replace(recipe, name=name, constants=constants, is_woven=False, archs=archs)


def _mxfp4_recipe(
    plan: TilePlan, dtype: str, activation: Activation, types: dict[str, str], *, is_gate_up: bool
) -> KernelRecipe:
    tiles, is_woven = plan.gate_up if is_gate_up else plan.down, dtype == "bfloat16"
    constants = {
        "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "GROUP_M": tiles.group_m, "DIRECT": plan.is_direct,
        "IN_PAIRS": is_woven, "FOLDED": True, "EVEN_K": True, "HAS_BIAS": activation is SWIGLU, "OVERLAP": True,
    }  # fmt: skip
    label = f"{dtype}/{tiles.m}x{tiles.n}x{tiles.k}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
    return KernelRecipe(
        name=f"mxfp4/{'gate_up' if is_gate_up else 'down'}/{activation.name}/{label}{'/direct' if plan.is_direct else ''}",
        kernel=mxfp4.mxfp4_gate_up_product if is_gate_up else mxfp4.mxfp4_down_product,
        types=types,
        constants=constants | (_epilogue(activation) if is_gate_up else {}),
        warps=tiles.warps,
        stages=tiles.stages,
        rows=max(tiles.m, tiles.n),
        is_product=True,
        is_woven=is_woven,
        archs=frozenset({HOPPER}),
    )
