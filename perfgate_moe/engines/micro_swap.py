"""Our layer of 4-bit weights in the place of SGLang's `triton_kernels` runner, its default for gpt-oss on Hopper.

The runner gets tables that SGLang makes from a router's scores, and weights that SGLang lays out when it loads a model. So
three kinds of functions are hooked: bricks are made beside SGLang's own weights, the tables are put off until a layer turns out
to be SGLang's, and the layer is computed here from the scores where it can be. Read in the source of SGLang 0.5.15.post1 to
0.5.23, whose tables have other names from 0.5.18 on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perfgate_moe.engines.counters import Counters
from perfgate_moe.engines.swap import LAYER_TYPES, ServerState, choose_plan
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.bricks import Bricks, LaidOut, make_bricks, pose
from perfgate_moe.layer.fused import fused_moe, launch_mode
from perfgate_moe.layer.problem import Activation
from perfgate_moe.layer.router import choose
from perfgate_moe.layer.tables import stored

BRICKS = "perfgate_bricks"
PLAIN = {
    "inplace": (False,),
    "activation": ("silu",),
    "apply_router_weight_on_input": (False,),
    "use_fp8_w8a8": (False,),
    "per_channel_quant": (False,),
    "expert_map": (None,),
    "w1_scale": (None,),
    "w2_scale": (None,),
    "a1_scale": (None,),
    "a2_scale": (None,),
    "block_shape": (None,),
}
"""What a call must say, or leave unsaid, for a layer that our kernels compute."""

READ = {"hidden_states", "w1", "w1_pcg", "b1", "w2", "w2_pcg", "b2", "gemm1_alpha", "gemm1_clamp_limit", "global_num_experts"}
"""What else a call says."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """A router's scores [M, E], from which `make` gives the tables that SGLang's runner reads."""

    scores: Tensor
    top_k: int
    make: Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroSwap:
    """Hooks that compute a layer of 4-bit weights here when they can, and count. `tables` names what a router hands on."""

    mode: str
    counters: Counters
    server: Callable[[], ServerState]
    tables: tuple[str, ...]

    def lay_out(self, original: Callable[..., Any], quant_tensor: Tensor, scale: Tensor, num_warps: int) -> Any:
        """Around `_swizzle_mxfp4`: SGLang's weight, and bricks of it where a layer may be computed from them."""
        weight, *rest = original(quant_tensor, scale, num_warps)
        if self.mode != "auto" or has_plans(quant_tensor.device):
            setattr(weight, BRICKS, make_bricks(quant_tensor.detach(), scale.detach()))
        return weight, *rest

    def put_off(self, original: Callable[..., Any], logits: Tensor, n_expts_act: int, **words: Any) -> Any:
        """Around `routing`: what stands for each table until the layer is known."""
        if words.get("sm_first"):
            return original(logits, n_expts_act, **words)
        waiting = Waiting(scores=logits, top_k=n_expts_act, make=lambda: original(logits, n_expts_act, **words))
        return (waiting,) * len(self.tables)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """An AROUND hook for a function of the runner."""
        names = tuple(inspect.signature(function).parameters)

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self.run(original, dict(zip(names, args, strict=False)) | kwargs)

        return hook

    def run(self, original: Callable[..., Any], call: Mapping[str, Any]) -> Any:
        """The layer's answer, by our kernels or by `original`."""
        try:
            problem, scores = read_call(call, self.tables, self.server())
            plan = choose_plan(self.mode, problem)
        except NotApplicableError as reason:
            self.counters.count_fallback(str(reason))
            return original(**(dict(call) | make_tables(call, self.tables)))
        choose(scores, problem.topk_weights, problem.topk_ids, launch_mode(problem, plan))
        answer = fused_moe(problem, plan)
        is_captured = answer.is_cuda and torch.cuda.is_current_stream_capturing()
        self.counters.count_computed(f"{plan.variant} in bricks", is_captured=is_captured)
        return answer


def has_plans(device: torch.device) -> bool:
    """Whether any layer in bricks was tuned on this device: a second copy of the weights is of no use otherwise."""
    return device.type == "cuda" and any(name.endswith(",bricks") for name in stored(torch.cuda.get_device_name(device)))


def make_tables(call: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The tables of a call that were put off; the runner leaves one of them out where it does not combine."""
    waiting = next((call[name] for name in names if isinstance(call.get(name), Waiting)), None)
    made = () if waiting is None else waiting.make()
    return {name: table for name, table in zip(names, made, strict=False) if isinstance(call.get(name), Waiting)}


def read_call(call: Mapping[str, Any], tables: tuple[str, ...], server: ServerState) -> tuple[LaidOut, Tensor]:
    """The problem that a call of the runner poses, its choice of experts not made yet, and the router's scores.

    Raise NotApplicableError with a short, stable reason where our kernels do not cover it.
    """
    for reason in _objections(call, tables, server):
        raise NotApplicableError(reason)
    hidden, waiting = call["hidden_states"], call[tables[0]]
    shape = (hidden.shape[0], waiting.top_k)
    gate_up, down = (getattr(call[name], BRICKS) for name in ("w1", "w2"))
    problem = pose(
        hidden, gate_up, down, gate_up_bias=call.get("b1"), down_bias=call.get("b2"),
        topk_weights=hidden.new_empty(shape, dtype=torch.float32), topk_ids=hidden.new_empty(shape, dtype=torch.int32),
        activation=Activation(
            name="swiglu", interleaved=True, alpha=float(call["gemm1_alpha"]), limit=float(call["gemm1_clamp_limit"]), shift=1.0
        ),
    )  # fmt: skip
    return problem, waiting.scores


def _objections(call: Mapping[str, Any], tables: tuple[str, ...], server: ServerState) -> Iterator[str]:
    """Why our kernels cannot compute this call, the plainest reason first."""
    if not all(isinstance(call.get(name), Waiting) for name in tables):
        yield "a router or a runner that asks for something else"
    yield from (f"{name}={call[name]!r}" for name, plain in PLAIN.items() if name in call and call[name] not in plain)
    others = set(call) - READ - set(PLAIN) - set(tables)
    yield from (f"the unknown {name}" for name in sorted(others) if call[name] is not None and call[name] is not False)
    if not all(hasattr(call[name], BRICKS) for name in ("w1", "w2")):
        yield "weights that were not laid out in bricks"
    if call.get("gemm1_alpha") is None or call.get("gemm1_clamp_limit") is None:
        yield "another activation than gpt-oss'"
    yield from _layout_objections(call["hidden_states"], call[tables[0]].scores, getattr(call["w1"], BRICKS))
    if server.is_deterministic:
        yield "deterministic inference: tiles depend on the batch"
    if server.is_symmetric:
        yield "answer in symmetric memory"
    if not (call["hidden_states"].is_cuda or server.is_interpreted):
        yield f"device {call['hidden_states'].device.type}"


def _layout_objections(hidden: Tensor, scores: Tensor, gate_up: Bricks) -> Iterator[str]:
    if hidden.dtype not in LAYER_TYPES or hidden.shape[1] != gate_up.columns:
        yield "hidden states of another type or width"
    if not (hidden.is_contiguous() and scores.is_contiguous()):
        yield "hidden states or scores not contiguous"
    if not hidden.shape[0]:
        yield "no tokens"
    if scores.shape != (hidden.shape[0], gate_up.codes.shape[0]):
        yield "experts that are not all at hand"
