"""vLLM's MoE layer as an implementation: its Triton layer on a GPU, its vector kernel on a CPU.

The one place that knows its internals. Written against vLLM 0.32; another version that lacks a name used here is refused with
that name. On a CPU vLLM keeps weights in a layout of its own, so they are packed before each call.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from perfgate_moe.engines.optional import load_names
from perfgate_moe.engines.sglang_peer import config_of
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import SCALE_BLOCK, SILU, SWIGLU, BlockScales, MicroScales, Problem
from perfgate_moe.layer.tiles import TilePlan

ACTIVATIONS = {SILU.name: "silu", SWIGLU.name: "swigluoai"}
NEEDED = "vLLM 0.32 or a version like it"
_LAYER = "vllm.model_executor.layers.fused_moe"
# The portable kernel: it needs no instructions that a test machine may lack, and whole blocks of 32 rows.
CPU_KERNEL, CPU_ALIGNMENT = "vec", 32


def layer(problem: Problem, plan: TilePlan | None = None) -> Tensor:
    """Run vLLM's layer on the problem's device. NotApplicableError says what vLLM does not cover.

    With a plan, a GPU takes the tiles of its `gate_up` for both products, for which vLLM has one configuration, instead of
    those of vLLM's own choice.
    """
    if problem.activation.name not in ACTIVATIONS:
        raise NotApplicableError(f"vLLM's layer has no activation {problem.activation.name}")
    if problem.hidden.dtype not in {torch.bfloat16, torch.float16} or not problem.tokens:
        raise NotApplicableError("vLLM's layer is asked for 16 bits and at least one token")
    if problem.weight_on_input and problem.top_k != 1:
        raise NotApplicableError("vLLM applies router weights to the input for top-k = 1 only")
    if isinstance(problem.scales, MicroScales):
        raise NotApplicableError("vLLM's function for this layer takes no 4-bit weights; other layers of its do")
    return _run_on_cpu(problem) if problem.hidden.device.type == "cpu" else _run_on_gpu(problem, plan)


def is_installed() -> bool:
    """Whether there is a vLLM to compare with, and a GPU for it."""
    return find_spec("vllm") is not None and torch.cuda.is_available()


def fold_scaling(problem: Problem) -> Problem:
    """The problem as vLLM's layer gets it: router weights are scaled where they are made, outside of the layer."""
    if problem.routed_scaling == 1.0:
        return problem
    return replace(problem, topk_weights=problem.topk_weights * problem.routed_scaling, routed_scaling=1.0)


def _run_on_gpu(problem: Problem, plan: TilePlan | None) -> Tensor:
    sizes = (problem.hidden_size, problem.intermediate_size)
    if isinstance(problem.scales, BlockScales) and any(size % SCALE_BLOCK for size in sizes):
        raise NotApplicableError(f"vLLM rounds rows to 8 bits in whole groups of {SCALE_BLOCK} columns")
    vllm = load_names(
        NEEDED,
        override_config=f"{_LAYER}:override_config",
        activation=f"{_LAYER}.activation:MoEActivation",
        biased=f"{_LAYER}.config:biased_moe_quant_config",
        fp8=f"{_LAYER}.config:fp8_w8a8_moe_quant_config",
        fused_experts=f"{_LAYER}.fused_moe:fused_experts",
    )
    biases = {"w1_bias": problem.gate_up_bias, "w2_bias": problem.down_bias}
    if isinstance(problem.scales, BlockScales):
        scales = {"w1_scale": problem.scales.gate_up, "w2_scale": problem.scales.down}
        config = vllm.fp8(**scales, **biases, block_shape=[SCALE_BLOCK, SCALE_BLOCK])
    else:
        config = vllm.biased(**biases)
    # Set in each call, None too: after an error, vLLM's context leaves its tiles to the next caller.
    with vllm.override_config(None if plan is None else config_of(plan.gate_up)):
        answer: Tensor = vllm.fused_experts(
            problem.hidden, problem.gate_up, problem.down, fold_scaling(problem).topk_weights, **_experts(problem),
            activation=vllm.activation(ACTIVATIONS[problem.activation.name]),
            apply_router_weight_on_input=problem.weight_on_input, quant_config=config,
        )  # fmt: skip
    return answer


def _experts(problem: Problem) -> dict[str, Any]:
    """Ids as vLLM has them: an expert of another rank is one more expert, which its map sends to -1.

    Without such experts there is no map, as on one rank. Ids cannot be read while a graph is recorded; those are all taken to
    be here.
    """
    is_recorded = problem.hidden.is_cuda and torch.cuda.is_current_stream_capturing()
    if is_recorded or not bool((problem.topk_ids < 0).any()):
        return {"topk_ids": problem.topk_ids, "global_num_experts": problem.experts, "expert_map": None}
    count = problem.experts
    places = torch.arange(count + 1, dtype=torch.int32, device=problem.hidden.device)
    places[count] = -1
    ids = torch.where(problem.topk_ids < 0, count, problem.topk_ids)
    return {"topk_ids": ids, "global_num_experts": count + 1, "expert_map": places}


def _run_on_cpu(problem: Problem) -> Tensor:
    if problem.scales is not None or problem.weight_on_input or bool((problem.topk_ids < 0).any()):
        raise NotApplicableError("vLLM's CPU kernel is asked for plain 16-bit weights with all experts at hand")
    if problem.hidden_size % CPU_ALIGNMENT or problem.intermediate_size % CPU_ALIGNMENT:
        raise NotApplicableError(f"vLLM's CPU kernel takes hidden and intermediate sizes that are multiples of {CPU_ALIGNMENT}")
    operators = load_names(NEEDED, vllm="vllm._custom_ops").vllm
    if not hasattr(torch.ops._C, "prepack_moe_weight"):  # noqa: SLF001 - the name that vLLM registers its operators under
        raise NotApplicableError("this build of vLLM has no layer for a CPU; ask for --device cuda")
    gate_up, down = (operators.cpu_prepack_moe_weight(one, CPU_KERNEL) for one in (problem.gate_up, problem.down))
    operators.cpu_fused_moe(
        problem.out, problem.hidden, gate_up, down, problem.gate_up_bias, problem.down_bias,
        fold_scaling(problem).topk_weights, problem.topk_ids, ACTIVATIONS[problem.activation.name], CPU_KERNEL,
    )  # fmt: skip
    return problem.out
