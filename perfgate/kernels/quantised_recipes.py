"""What there is to compile for layers with quantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfgate.kernels import fp8, mxfp4
from perfgate.kernels.fp8_rounding import round_rows
from perfgate.kernels.problem import MICRO_BLOCK, SCALE_BLOCK, SILU, SWIGLU, Activation
from perfgate.kernels.recipes import COMMON_TYPES, ELEMENTS, Recipe
from perfgate.kernels.reference import FLOAT8_MAX, SMALLEST_PEAK

HOPPER = 90


def _types(dtype: str) -> dict[str, str]:
    own = dict.fromkeys(("bias", "inner", "target", "rows", "hidden"), f"*{ELEMENTS[dtype]}")
    return COMMON_TYPES | own | {"used": "*i32", "K": "i32"}


def _epilogue(activation: Activation) -> dict[str, Any]:
    constants = {"ALPHA": activation.alpha, "LIMIT": activation.limit or 0.0, "SHIFT": activation.shift}
    return {"INTERLEAVED": activation.interleaved, **constants}


def fp8_recipes(dtype: str) -> Iterator[Recipe]:
    """8-bit floats came with compute capability 8.9: Hopper among our architectures."""
    types = _types(dtype) | {"codes": "*fp8e4nv", "weight": "*fp8e4nv"}
    types |= dict.fromkeys(("scales", "row_scales", "weight_scales"), "*fp32")
    for is_sorted in (False, True):
        constants = {"GROUP": SCALE_BLOCK, "PEAK": FLOAT8_MAX, "SMALLEST": SMALLEST_PEAK, "SORTED": is_sorted, "OVERLAP": True}
        name = f"fp8/round/{dtype}" + ("/sorted" if is_sorted else "")
        yield Recipe(name=name, kernel=round_rows, types=types, constants=constants, warps=1, least_arch=HOPPER)
    for tiles in fp8.TILES:
        sizes = {"BLOCK": SCALE_BLOCK, "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "GROUP_M": tiles.group_m, "OVERLAP": True}
        label = f"{dtype}/{tiles.m}x{tiles.n}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
        for activation in (SWIGLU, SILU):
            for product, kernel, own in (
                ("gate_up", fp8.fp8_gate_up_product, _epilogue(activation)),
                ("down", fp8.fp8_down_product, {}),
            ):
                yield Recipe(
                    name=f"fp8/{product}/{activation.name}/{label}",
                    kernel=kernel,
                    types=types,
                    constants={**sizes, **own, "HAS_BIAS": activation is SWIGLU},
                    warps=tiles.warps,
                    stages=tiles.stages,
                    rows=tiles.m,
                    is_product=True,
                    is_fp8=True,
                    least_arch=HOPPER,
                )


def mxfp4_recipes(dtype: str) -> Iterator[Recipe]:
    """4-bit weights become 16-bit ones in registers, on any architecture."""
    types = _types(dtype) | {"pairs": "*u8", "scales": "*u8"}
    for tiles in mxfp4.TILES:
        sizes = {"MICRO": MICRO_BLOCK, "BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "GROUP_M": tiles.group_m}
        label = f"{dtype}/{tiles.m}x{tiles.n}x{tiles.k}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
        for activation in (SWIGLU, SILU):
            for product, kernel, own in (
                ("gate_up", mxfp4.mxfp4_gate_up_product, _epilogue(activation)),
                ("down", mxfp4.mxfp4_down_product, {}),
            ):
                yield Recipe(
                    name=f"mxfp4/{product}/{activation.name}/{label}",
                    kernel=kernel,
                    types=types,
                    constants={**sizes, **own, "HAS_BIAS": activation is SWIGLU, "OVERLAP": True},
                    warps=tiles.warps,
                    stages=tiles.stages,
                    rows=tiles.m,
                    is_product=True,
                )
