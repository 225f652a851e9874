"""Read one call of SGLang's Triton MoE layer as a problem of ours, or say why it is none; no value of a tensor is looked at.

Nothing here waits for the device, so that a call can be captured into a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perfgate_moe.engines.sglang_layer import ADDED
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import SCALE_BLOCK, SILU, Activation, BlockScales, Problem, scale_blocks_of
from perfgate_moe.layer.reference import FLOAT8
from perfgate_moe.layer.tables import Tuned, choose, sorted_plan, tuned
from perfgate_moe.layer.tiles import OWNER, TilePlan, Variant

QUANTISED = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant")
SCALES = ("w1_scale", "w2_scale", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape")
LAYER_TYPES = (torch.bfloat16, torch.float16)
FP8_BLOCKS = ("use_fp8_w8a8", "w1_scale", "w2_scale", "block_shape")
OWNER_TOKENS = 64

Call = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the layer must know of the server besides its arguments.

    `is_deterministic`: the server promises the same bits for every batch; `is_symmetric`: a new answer must lie in NCCL's
    symmetric memory; `is_interpreted`: kernels run on the CPU; `is_traced`: torch compiles layers, which stay SGLang's then.
    """

    is_deterministic: bool = False
    is_symmetric: bool = False
    is_interpreted: bool = False
    is_traced: bool = False


def read_call(call: Call, server: ServerState) -> Problem:
    """The problem that a call of `fused_experts_impl` or `_fused_moe_kernel_sequence` poses, arguments by name.

    Raise NotApplicableError with a short, stable reason where our kernels do not cover it.
    """
    for reason in _objections(call, server):
        raise NotApplicableError(reason)
    scales = BlockScales(gate_up=call["w1_scale"], down=call["w2_scale"]) if is_fp8_blocks(call) else None
    hidden: Tensor = call["hidden_states"]
    scaling = call["routed_scaling_factor"]
    return Problem(
        hidden=hidden,
        gate_up=call["w1"],
        gate_up_bias=call["b1"],
        down=call["w2"],
        down_bias=call["b2"],
        topk_weights=call["topk_weights"],
        topk_ids=call["topk_ids"],
        activation=read_activation(call),
        routed_scaling=1.0 if scaling is None else float(scaling),
        weight_on_input=bool(call["apply_router_weight_on_input"]),
        out=hidden if call["inplace"] else torch.empty_like(hidden),
        scales=scales,
    )


def is_fp8_blocks(call: Call) -> bool:
    """Whether weights are 8-bit floats in blocks of 128 by 128, and activations are rounded by SGLang's recipe."""
    return bool(call["use_fp8_w8a8"]) and list(call["block_shape"] or ()) == [SCALE_BLOCK, SCALE_BLOCK]


def read_activation(call: Call) -> Activation:
    """The activation that the call names; NotApplicableError for one that our kernels do not have."""
    name, alpha, limit = call["activation"], call["gemm1_alpha"], call["gemm1_limit"]
    if name != "silu" or not call["is_gated"]:
        raise NotApplicableError(f"activation {name}{'' if call['is_gated'] else ' without a gate'}")
    if call["swiglu_limit"] is not None:
        raise NotApplicableError("activation with swiglu_limit")
    if alpha is None and limit is None:
        return SILU
    if alpha is None or limit is None:
        raise NotApplicableError("activation clamped after SiLU")
    interleaved = bool(call["gate_up_interleaved"])
    kind = "swiglu" if interleaved else "swiglu-chunked"
    return Activation(name=kind, interleaved=interleaved, alpha=float(alpha), limit=float(limit), shift=1.0)


def choose_plan(mode: str, problem: Problem) -> TilePlan:
    """The plan that `SGLANG_MOE_FUSE_DOWN_SUM_REDUCE=mode` asks for; `auto` takes measured plans that gained only."""
    if problem.scales is not None and mode not in {"auto", Variant.SLOTS}:
        raise NotApplicableError(f"{mode}: quantised weights are computed by slots only")
    if mode == "auto":
        found = tuned(problem)
        if found is None:
            raise NotApplicableError("auto: no tuned plan for this device and shape")
        if not is_taken(found):
            raise NotApplicableError("auto: not faster than SGLang when it was tuned")
        return found.plan
    if mode == Variant.OWNER:
        if problem.tokens > OWNER_TOKENS or problem.top_k > OWNER.gate_up.m:
            raise NotApplicableError(f"owner: more than {OWNER_TOKENS} tokens or {OWNER.gate_up.m} experts each")
        return OWNER
    plan = choose(problem)
    return plan if plan.variant == mode else sorted_plan(problem, Variant(mode))


def is_taken(found: Tuned) -> bool:
    """Whether `auto` takes a plan: it does not where SGLang was faster when the plan was tuned."""
    return found.gain is None or found.gain >= 1.0


def _objections(call: Call, server: ServerState) -> Iterator[str]:
    """Why our kernels cannot compute this call, the plainest reason first."""
    if call.get("hooks") is not None:
        yield "LoRA hooks"
    covered = FP8_BLOCKS if is_fp8_blocks(call) else ()
    yield from (f"quantised weights ({name})" for name in QUANTISED if call[name] and name not in covered)
    yield from (f"quantisation ({name})" for name in SCALES if call[name] is not None and name not in covered)
    if call["no_combine"]:
        yield "no_combine"
    yield from (each.asks for each in ADDED if each.asks is not None and not _is_plain(call.get(each.name)))
    read_activation(call)
    yield from _layout_objections(call)
    if not call["hidden_states"].shape[0]:
        yield "no tokens"
    yield from list_server_objections(server, call["hidden_states"].device, is_new=not call["inplace"])


def list_server_objections(server: ServerState, device: torch.device, *, is_new: bool) -> Iterator[str]:
    """Why our kernels cannot compute any layer of this server on this device; `is_new` of an answer in memory of its own."""
    if server.is_deterministic:
        yield "deterministic inference: tiles depend on the batch"
    if server.is_symmetric and is_new:
        yield "answer in symmetric memory"
    if not (device.type == "cuda" or server.is_interpreted):
        yield f"device {device.type}"


def _is_plain(value: object) -> bool:
    return value is None or value is False


def _layout_objections(call: Call) -> Iterator[str]:
    hidden, w1, w2 = call["hidden_states"], call["w1"], call["w2"]
    if hidden.dtype not in LAYER_TYPES:
        yield f"dtype {_name(hidden.dtype)}"
    wanted = FLOAT8 if is_fp8_blocks(call) else hidden.dtype
    if w1.dtype != wanted or w2.dtype != wanted:
        yield f"weights of dtype {_name(w1.dtype)} for activations of {_name(hidden.dtype)}"
    experts, hidden_size, intermediate_size = w2.shape
    if hidden.shape[1] != hidden_size or w1.shape != (experts, 2 * intermediate_size, hidden_size):
        yield "weight layout"
    if call["topk_weights"].dtype != torch.float32 or call["topk_ids"].dtype != torch.int32:
        yield f"router dtypes {_name(call['topk_weights'].dtype)}, {_name(call['topk_ids'].dtype)}"
    for name, shape in (("b1", (experts, 2 * intermediate_size)), ("b2", (experts, hidden_size))):
        bias = call[name]
        if bias is not None and (tuple(bias.shape) != shape or not bias.is_floating_point()):
            yield f"bias layout ({name})"
        if bias is not None and call["apply_router_weight_on_input"]:
            yield "router weight on input with biases"
    if is_fp8_blocks(call):
        yield from _scale_objections(call, experts, hidden_size, intermediate_size)
    names = ("hidden_states", "w1", "w2", "b1", "b2", "topk_weights", "topk_ids")
    yield from (f"{name} not contiguous" for name in names if call[name] is not None and not call[name].is_contiguous())


def _scale_objections(call: Call, experts: int, hidden_size: int, intermediate_size: int) -> Iterator[str]:
    sizes = {"w1_scale": (2 * intermediate_size, hidden_size), "w2_scale": (hidden_size, intermediate_size)}
    for name, size in sizes.items():
        scale, shape = call[name], (experts, *scale_blocks_of(*size))
        if scale is None or tuple(scale.shape) != shape or scale.dtype != torch.float32 or not scale.is_contiguous():
            yield f"scale layout ({name})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
