"""SGLang's fused_experts as an implementation, plain and with its sum fusion: the one place that knows its internals.

Written against the source of SGLang 0.5.15.post1 to 0.5.23; a version that lacks a name used here is refused with that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from perfgate_moe.engines.optional import load_names
from perfgate_moe.engines.sglang_layer import FIRST, LAST
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import SCALE_BLOCK, BlockScales, MicroScales, Problem
from perfgate_moe.layer.reference import decode, scale_micro, unpack_pairs
from perfgate_moe.layer.tiles import TilePlan, Tiles

_LAYER = "sglang.srt.layers.moe.moe_runner.triton_utils"
WIDENED = "16 bits (widened from mxfp4)"
FUSED_SUM_LEAST_TOP_K = 3  # upstream fuses for top-k > 2 only


def plain(problem: Problem) -> Tensor:
    """SGLang's layer with a separate sum over slots."""
    return fused_experts(problem, is_sum_fused=False)


def fused_sum(problem: Problem) -> Tensor:
    """SGLang's layer with `--enable-fused-moe-sum-all-reduce`: 16-bit atomics in the second product."""
    if problem.top_k < FUSED_SUM_LEAST_TOP_K:
        raise NotApplicableError("SGLang fuses the sum for top-k > 2 only")
    return fused_experts(problem, is_sum_fused=True)


def fused_experts(problem: Problem, *, is_sum_fused: bool, plan: TilePlan | None = None) -> Tensor:
    """Run SGLang's layer; with a plan, with its tiles instead of SGLang's own choice."""
    _require_covered(problem)
    modules = _modules()
    _publish(modules, is_sum_fused=is_sum_fused)
    topk_output = modules.topk(problem.topk_weights, problem.topk_ids, problem.topk_weights)
    with _tiles(modules, plan):
        answer: Tensor = modules.fused_experts(
            problem.hidden, problem.gate_up, problem.down, topk_output, _runner_config(modules, problem),
            b1=problem.gate_up_bias, b2=problem.down_bias, **_quantisation(problem),
        )  # fmt: skip
    return answer


def widen(problem: Problem) -> Problem:
    """The problem as SGLang's Triton layer computes it: 4-bit weights in the layer's dtype, exactly the same values.

    SGLang widens them once, when it loads a model, as a benchmark must, outside the timed region. The new weights take
    almost four times the bytes. Other problems come back as they are.
    """
    if not isinstance(problem.scales, MicroScales):
        return problem
    gate_up = _widen(problem.gate_up, problem.scales.gate_up, problem.hidden.dtype)
    down = _widen(problem.down, problem.scales.down, problem.hidden.dtype)
    return replace(problem, gate_up=gate_up, down=down, scales=None)


def _widen(pairs: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """16-bit weights [E, N, K] from pairs [E, N, K / 2] and scales [E, N, K / 32], expert by expert to save memory."""
    wide = torch.empty((*pairs.shape[:2], 2 * pairs.shape[2]), dtype=dtype, device=pairs.device)
    for expert in range(len(pairs)):
        wide[expert] = scale_micro(decode(unpack_pairs(pairs[expert])), scales[expert])
    return wide


def is_installed() -> bool:
    """Whether there is an SGLang to compare with, and a GPU for it."""
    return find_spec("sglang") is not None and torch.cuda.is_available()


def _require_covered(problem: Problem) -> None:
    if problem.hidden.dtype not in (torch.bfloat16, torch.float16):
        raise NotApplicableError("SGLang's Triton layer computes in 16 bits only")
    if isinstance(problem.scales, MicroScales):
        raise NotApplicableError("SGLang's Triton layer has 4-bit weights widened when they are loaded")
    is_whole = problem.hidden_size % SCALE_BLOCK == problem.intermediate_size % SCALE_BLOCK == 0
    if isinstance(problem.scales, BlockScales) and not is_whole:
        raise NotApplicableError(f"SGLang rounds activations in whole groups of {SCALE_BLOCK} columns only")
    if not problem.tokens:
        raise NotApplicableError("SGLang does not launch the layer without tokens")


def _modules() -> SimpleNamespace:
    """SGLang's names that are used here; NotApplicableError names the one that this installation lacks."""
    modules = load_names(
        f"SGLang {FIRST} to {LAST} or a version like them",
        fused_moe=f"{_LAYER}.fused_moe",
        fused_experts=f"{_LAYER}.fused_moe:fused_experts",
        tables=f"{_LAYER}.fused_moe_triton_config",
        config="sglang.srt.layers.moe.moe_runner:MoeRunnerConfig",
        topk="sglang.srt.layers.moe.topk:StandardTopKOutput",
        get_context="sglang.srt.runtime_context:get_context",
    )
    # One process has no tensor-parallel group: give the allocator the answer it would get with one rank.
    modules.fused_moe.get_tp_group = lambda: None
    # Where the group is since 0.5.21.
    modules.fused_moe.get_parallel = lambda: SimpleNamespace(tp_group=None)
    modules.fused_moe.is_allocation_symmetric = lambda: False
    return modules


def _publish(modules: SimpleNamespace, *, is_sum_fused: bool) -> None:
    """Tell the layer the server's arguments that it reads: as they are up to 0.5.16, in groups since."""
    moe = {"enable_fused_moe_sum_all_reduce": is_sum_fused}
    deterministic, communication = {"enable_deterministic_inference": False}, {"enable_symm_mem": False}
    if not hasattr(modules.fused_moe, "get_exec"):
        modules.get_context().set_server_args(SimpleNamespace(**moe, **deterministic, **communication))
        return
    groups = {"moe": moe, "deterministic": deterministic, "comm": communication}
    settings = SimpleNamespace(**{name: SimpleNamespace(**group) for name, group in groups.items()})
    for module in (modules.fused_moe, modules.tables):
        module.get_exec = lambda: settings


def _quantisation(problem: Problem) -> dict[str, Any]:
    """How SGLang is told of 8-bit weights."""
    if problem.scales is None:
        return {}
    scales = {"w1_scale": problem.scales.gate_up, "w2_scale": problem.scales.down}
    return {"use_fp8_w8a8": True, "block_shape": [SCALE_BLOCK, SCALE_BLOCK], **scales}


def _runner_config(modules: SimpleNamespace, problem: Problem) -> Any:
    activation = problem.activation
    # Ids cannot be read while a graph is recorded; those are all taken to be here.
    is_recorded = problem.hidden.is_cuda and torch.cuda.is_current_stream_capturing()
    is_local = is_recorded or not bool((problem.topk_ids < 0).any())
    return modules.config(
        num_experts=problem.experts if is_local else 2 * problem.experts,
        num_local_experts=problem.experts,
        top_k=problem.top_k,
        activation="silu",
        inplace=False,
        apply_router_weight_on_input=problem.weight_on_input,
        routed_scaling_factor=problem.routed_scaling,
        gemm1_alpha=None if activation.limit is None else activation.alpha,
        gemm1_clamp_limit=activation.limit,
        gate_up_interleaved=activation.interleaved,
    )


@contextmanager
def _tiles(modules: SimpleNamespace, plan: TilePlan | None) -> Iterator[None]:
    """Put a plan's tiles where SGLang looks up its own."""
    if plan is None:
        yield
        return
    original = modules.fused_moe.try_get_optimal_moe_config
    down = config_of(plan.down) | {"USE_TMA": plan.down.tma}
    modules.fused_moe.try_get_optimal_moe_config = lambda *_, **__: (config_of(plan.gate_up), (dict(down), plan.down.m))
    try:
        yield
    finally:
        modules.fused_moe.try_get_optimal_moe_config = original


def config_of(tiles: Tiles) -> dict[str, int]:
    """Tiles under the names that SGLang has for them, and vLLM, from which it took them."""
    sizes = {"BLOCK_SIZE_M": tiles.m, "BLOCK_SIZE_N": tiles.n, "BLOCK_SIZE_K": tiles.k, "GROUP_SIZE_M": tiles.group_m}
    return sizes | {"num_warps": tiles.warps, "num_stages": tiles.stages}
