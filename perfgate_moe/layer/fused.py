"""The fused layer: one function, a plan that says how, and a name for each variant."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.align import Alignment, align
from perfgate_moe.layer.bricks import lay_out
from perfgate_moe.layer.combine import launch_sum, own_down_product
from perfgate_moe.layer.down import down_product
from perfgate_moe.layer.fp8 import fp8_moe
from perfgate_moe.layer.gate_up import gate_up_product
from perfgate_moe.layer.mxfp4 import mxfp4_moe
from perfgate_moe.layer.problem import MicroScales, Problem
from perfgate_moe.layer.tables import choose, sorted_plan
from perfgate_moe.layer.tiles import DECODE, OWNER, TilePlan, Tiles, Variant, is_late

FEW_TOKENS = 64
TMA_ALIGNMENT_BYTES = 16


def fused_moe(problem: Problem, plan: TilePlan | None = None) -> Tensor:
    """Run the layer on the device of its tensors; returns `problem.out`, wholly written.

    Without a plan, takes the one tuned for this device, shape and number of tokens. SLOTS and OWNER give the same bits on every
    run; ATOMIC32 does not. Float32 is computed in float32 (no tf32).
    """
    if not problem.tokens:
        return problem.out
    plan = plan or choose(problem)
    launch = launch_mode(problem, plan)
    if problem.scales is not None:
        return _run_quantised(problem, plan, launch)
    if plan.variant is Variant.OWNER:
        return _run_owner(problem, plan, launch)
    alignment = None if plan.is_direct else align(problem.topk_ids, problem.experts, plan.gate_up.m, launch)
    if plan.variant is Variant.ATOMIC32:
        total = torch.zeros(problem.out.shape, dtype=torch.float32, device=problem.out.device)
        inner = _launch_gate_up(problem, plan.gate_up, alignment, launch)
        _launch_down(problem, plan.down, alignment, inner, total, launch, is_atomic=True)
        return problem.out.copy_(total)
    inner = _launch_gate_up(problem, plan.gate_up, alignment, launch)
    partial = problem.hidden.new_empty((problem.topk_ids.numel(), problem.hidden_size))
    _launch_down(problem, plan.down, alignment, inner, partial, launch, is_atomic=False)
    return launch_sum(problem, partial, launch)


def _run_quantised(problem: Problem, plan: TilePlan, launch: dict[str, bool]) -> Tensor:
    """The layer with quantised weights, which has one variant. 4-bit weights that do not lie in bricks are laid out now."""
    if plan.variant is not Variant.SLOTS:
        raise NotApplicableError("quantised weights are computed by slots only")
    if isinstance(problem.scales, MicroScales):
        return mxfp4_moe(lay_out(problem), plan, launch)
    return fp8_moe(problem, plan, launch)


def launch_mode(problem: Problem, plan: TilePlan) -> dict[str, bool]:
    """Launch options that let a kernel start while the one before it drains; empty of effect off Hopper and later."""
    device = problem.hidden.device
    can = device.type == "cuda" and is_late(device)
    return {"OVERLAP": True, "launch_pdl": True} if can and plan.is_overlapped else {"OVERLAP": False}


def automatic(problem: Problem) -> Tensor:
    """The layer with the plan that was tuned for it."""
    return fused_moe(problem)


def slots(problem: Problem) -> Tensor:
    """The layer with a row for each slot and a fixed-order sum: deterministic."""
    return fused_moe(problem, sorted_plan(problem, Variant.SLOTS))


def atomic32(problem: Problem) -> Tensor:
    """The layer with relaxed float32 atomics."""
    return fused_moe(problem, sorted_plan(problem, Variant.ATOMIC32))


def direct(problem: Problem) -> Tensor:
    """The layer without sorting, every slot a block by itself: deterministic, for few tokens."""
    if problem.tokens > FEW_TOKENS:
        raise NotApplicableError(f"direct is for at most {FEW_TOKENS} tokens")
    return fused_moe(problem, DECODE)


def owner(problem: Problem) -> Tensor:
    """The layer with one program for a token's columns: deterministic, for few tokens."""
    if problem.tokens > FEW_TOKENS or problem.top_k > OWNER.gate_up.m:
        raise NotApplicableError(f"owner is for at most {FEW_TOKENS} tokens and k <= {OWNER.gate_up.m}")
    return fused_moe(problem, OWNER)


def _activation_arguments(problem: Problem) -> dict[str, Any]:
    activation = problem.activation
    return {
        "INTERLEAVED": activation.interleaved,
        "HAS_BIAS": problem.gate_up_bias is not None,
        "WEIGHT_ON_INPUT": problem.weight_on_input,
        "ALPHA": activation.alpha,
        "LIMIT": activation.limit or 0.0,
        "SHIFT": activation.shift,
    }


def _tile_arguments(tiles: Tiles) -> dict[str, Any]:
    sizes = {"BLOCK_M": tiles.m, "BLOCK_N": tiles.n, "BLOCK_K": tiles.k, "GROUP_M": tiles.group_m, "SHORT_BLOCKS": tiles.short}
    return sizes | {"num_warps": tiles.warps, "num_stages": tiles.stages}


def _uses_tma(tiles: Tiles, tensor: Tensor) -> bool:
    """Whether the tensor copy engine can and should read rows of `tensor`."""
    return tiles.tma and is_late(tensor.device) and tensor.shape[-1] * tensor.element_size() % TMA_ALIGNMENT_BYTES == 0


def _rows(tensor: Tensor, height: int, width: int, *, is_used: bool) -> Any:
    """A tile descriptor over the last dimension's rows; the tensor itself where none is used."""
    return TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), [height, width]) if is_used else tensor


def _launch_gate_up(problem: Problem, tiles: Tiles, alignment: Alignment | None, launch: dict[str, bool]) -> Tensor:
    """The first product and its activation: rows sorted by expert, or in slot order without an alignment."""
    slot_count = problem.topk_ids.numel()
    blocks = slot_count if alignment is None else alignment.blocks
    inner_rows = slot_count if alignment is None else blocks * tiles.m
    inner = problem.hidden.new_empty((inner_rows, problem.intermediate_size))
    # A chunked layout pairs rows that lie I apart, which one rectangular copy cannot fetch.
    is_tma = _uses_tma(tiles, problem.gate_up) and problem.activation.interleaved
    ids = problem.topk_ids
    order = (ids, ids, ids) if alignment is None else (alignment.slots, alignment.experts, alignment.count)
    bias = problem.gate_up if problem.gate_up_bias is None else problem.gate_up_bias
    gate_up_product[(blocks * triton.cdiv(2 * problem.intermediate_size, tiles.n),)](
        problem.hidden, problem.gate_up, _rows(problem.gate_up, tiles.n, tiles.k, is_used=is_tma), bias, inner,
        problem.topk_weights, *order, slot_count, problem.top_k, problem.hidden_size, problem.intermediate_size,
        **_activation_arguments(problem), **_tile_arguments(tiles), DIRECT=alignment is None, TMA=is_tma,
        EVEN_K=problem.hidden_size % tiles.k == 0, **launch,
    )  # fmt: skip
    return inner


def _depth_arguments(problem: Problem, tiles: Tiles) -> dict[str, bool]:
    """What the second product knows of its depth: whole steps of its tiles, or divided by 8 where 16 does not divide it."""
    depth = problem.intermediate_size
    return {"EVEN_K": depth % tiles.k == 0, "EIGHTHS": depth % 16 == 8}


def _launch_down(
    problem: Problem,
    tiles: Tiles,
    alignment: Alignment | None,
    inner: Tensor,
    target: Tensor,
    launch: dict[str, bool],
    *,
    is_atomic: bool,
) -> None:
    """The second product: into a row for each slot, or added to the float32 rows of tokens."""
    is_tma = alignment is not None and _uses_tma(tiles, problem.down)
    ids = problem.topk_ids
    order = (ids, ids, ids) if alignment is None else (alignment.slots, alignment.experts, alignment.count)
    blocks = ids.numel() if alignment is None else alignment.blocks
    bias = problem.down if problem.down_bias is None else problem.down_bias
    down_product[(blocks * triton.cdiv(problem.hidden_size, tiles.n),)](
        inner, _rows(inner, tiles.m, tiles.k, is_used=is_tma), _rows(inner, tiles.m // 2, tiles.k, is_used=is_tma),
        problem.down,
        _rows(problem.down, tiles.n, tiles.k, is_used=is_tma), bias, target, problem.topk_weights,
        *order, ids.numel(), problem.top_k, problem.hidden_size, problem.intermediate_size, problem.routed_scaling,
        HAS_BIAS=problem.down_bias is not None, WEIGHT_ON_INPUT=problem.weight_on_input, ATOMIC=is_atomic,
        DIRECT=alignment is None, TMA=is_tma, **_depth_arguments(problem, tiles), **_tile_arguments(tiles), **launch,
    )  # fmt: skip


def _run_owner(problem: Problem, plan: TilePlan, launch: dict[str, bool]) -> Tensor:
    """Two launches: every slot its own block of the first product, then programs that own a token's columns."""
    inner = _launch_gate_up(problem, plan.gate_up, None, launch)
    tiles = plan.down
    bias = problem.down if problem.down_bias is None else problem.down_bias
    own_down_product[(triton.cdiv(problem.hidden_size, tiles.n), problem.tokens)](
        inner, problem.down, bias, problem.out, problem.topk_weights, problem.topk_ids,
        problem.hidden_size, problem.intermediate_size, problem.routed_scaling,
        TOP_K=problem.top_k, HAS_BIAS=problem.down_bias is not None, WEIGHT_ON_INPUT=problem.weight_on_input,
        **_depth_arguments(problem, tiles), ROWS=max(16, triton.next_power_of_2(problem.top_k)),
        BLOCK_N=tiles.n, BLOCK_K=tiles.k, num_warps=tiles.warps, num_stages=tiles.stages, **launch,
    )  # fmt: skip
    return problem.out
