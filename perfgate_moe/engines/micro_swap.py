"""Our layer of 4-bit weights in the place of SGLang's `triton_kernels` runner, its default for gpt-oss on Hopper.

The runner gets tables that SGLang makes from a router's scores, and weights that SGLang lays out when it loads a model. So
three functions are hooked: bricks are made in the place of SGLang's own weights, the tables are put off until a layer turns out
to be SGLang's, and the runner computes the layer here from the scores where it can. A call that is SGLang's gets weights that
SGLang's own function makes again of the bricks. Read in the source of SGLang 0.5.15.post1 to 0.5.23, whose tables have other
names from 0.5.18 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from perfgate_moe.engines.counters import Counters, is_captured
from perfgate_moe.engines.swap import LAYER_TYPES, ServerState, choose_plan, is_taken, list_server_objections
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.align import choose_by_score
from perfgate_moe.layer.bricks import Bricks, LaidOut, make_bricks, pose, take_apart
from perfgate_moe.layer.fused import fused_moe, launch_mode
from perfgate_moe.layer.problem import SWIGLU
from perfgate_moe.layer.tables import Tuned, name_shape, stored
from perfgate_moe.layer.tiles import Variant, has_warpgroups

BRICKS = "perfgate_bricks"
PARTS = 3
"""What SGLang's function gives for a weight: the weight, a record of its scale as a whole, and its scales."""

ASKED = {
    "activation": ("silu",),
    "is_gated": (True,),
    "apply_router_weight_on_input": (False,),
    "no_combine": (False,),
    "no_combine_keep_router_weight": (False,),
    "gemm1_beta": (None, 1.0),
    "swiglu_limit": (None,),
    "gate_up_interleaved": (True,),
}
"""What the runner's configuration must ask for, where it has the field, for a layer that our kernels compute."""

KNOWN = {
    *("hidden_states", "w13_weight", "w2_weight", "w13_bias", "w2_bias"),
    *("w13_precision_config", "w2_precision_config", "global_num_experts"),
}
"""What a call brings besides its tables."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """A router's scores [M, E], from which `make` gives the tables that SGLang's runner reads."""

    scores: Tensor
    top_k: int
    make: Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StandIn:
    """What stands for part `place` of a weight that lies in bricks alone; `make` gives all parts."""

    perfgate_bricks: Bricks
    make: Callable[[], Sequence[Any]]
    place: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunnerCall:
    """A call of the runner: `inputs` with the tables of these names, `weights`, and what the layer's `config` asks for."""

    inputs: Any
    weights: Any
    config: Any
    hooks: Any
    tables: Sequence[str]

    @property
    def waiting(self) -> Any:
        """What stands for the tables."""
        return getattr(self.inputs, self.tables[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroSwap:
    """Hooks that compute a layer of 4-bit weights here when they can, and count.

    `server` says what holds now, `promised` what the server's options promise while it loads. `tables` names what a router
    hands to the runner, and `output` is what the runner puts its answer in.
    """

    mode: str
    counters: Counters
    server: Callable[[], ServerState]
    promised: Callable[[], ServerState]
    tables: tuple[str, ...]
    output: Callable[..., Any]

    def lay_out(self, original: Callable[..., Any], quant_tensor: Tensor, scale: Tensor, num_warps: int) -> Any:
        """Around `_swizzle_mxfp4`: what stands for SGLang's weight where it lies in bricks, and SGLang's own where it must."""
        server, plans = self.promised(), list_plans(quant_tensor.device, quant_tensor.shape)
        if not is_useful(self.mode, quant_tensor.device, server, plans):
            return original(quant_tensor, scale, num_warps)
        bricks = make_bricks(quant_tensor.detach(), scale.detach())
        if server.is_traced or (self.mode == "auto" and not all(map(is_taken, plans))):
            weight, *rest = original(quant_tensor, scale, num_warps)
            setattr(weight, BRICKS, bricks)
            return weight, *rest

        def make() -> Any:
            return original(*take_apart(bricks), num_warps)

        return tuple(StandIn(perfgate_bricks=bricks, make=make, place=place) for place in range(PARTS))

    def put_off(self, original: Callable[..., Any], logits: Tensor, n_expts_act: int, **words: Any) -> Any:
        """Around `routing`: what stands for each table until the layer is known. Code that is traced stays SGLang's own."""
        if words.get("sm_first") or torch.compiler.is_compiling():
            return original(logits, n_expts_act, **words)
        waiting = Waiting(scores=logits, top_k=n_expts_act, make=lambda: original(logits, n_expts_act, **words))
        return tuple(n_expts_act if name == "n_expts_act" else waiting for name in self.tables)

    def run(self, original: Callable[..., Any], core: Any, runner_input: Any, quant_info: Any, *rest: Any, **words: Any) -> Any:
        """Around the runner's `run`: the layer's answer, by our kernels or by `original`.

        Traced code has `original` without a count: a trace of a whole graph ends where what counts reads a clock.
        """
        if torch.compiler.is_compiling():
            return original(core, make_tables(runner_input, self.tables), quant_info, *rest, **words)
        hooks = words.get("hooks") or (rest[1] if len(rest) > 1 else None)
        asked = RunnerCall(inputs=runner_input, weights=quant_info, config=core.config, hooks=hooks, tables=self.tables)
        try:
            problem, scores = read_layer(asked, self.server())
            plan = choose_plan(self.mode, problem)
            choose_by_score(scores, problem.topk_weights, problem.topk_ids, launch_mode(problem, plan))
            answer = fused_moe(problem, plan)
        except NotApplicableError as reason:
            self.counters.count_fallback(str(reason))
            weights = make_weights(quant_info)
            return original(core, make_tables(runner_input, self.tables), weights, *rest, **words)
        self.counters.count_computed(plan.variant, is_captured=is_captured(answer))
        return self.output(hidden_states=answer)


def is_useful(mode: str, device: torch.device, server: ServerState, plans: Sequence[Tuned]) -> bool:
    """Whether any layer with a weight in bricks will be computed here: otherwise it stays SGLang's alone.

    The order of bricks is that of Hopper, and other modes than these two leave quantised weights to SGLang.
    """
    if not has_warpgroups(device) or any(list_server_objections(server, device, is_new=True)):
        return False
    return mode == Variant.SLOTS or (mode == "auto" and bool(plans))


def list_plans(device: torch.device, shape: Sequence[int]) -> list[Tuned]:
    """What is stored for layers that a weight of pairs [E, N, K / 2] may be part of, as their first product or their second."""
    experts, rows, columns = shape[0], shape[1], 2 * shape[2]
    table = stored(torch.cuda.get_device_name(device)) if device.type == "cuda" else {}
    sizes = ((columns, rows // 2), (rows, columns))
    names = {name_shape((experts, k, *pair), SWIGLU.name, "mxfp4") for pair in sizes for k in range(1, experts + 1)}
    return [each for name in names & table.keys() for each in table[name].values()]


def make_tables(runner_input: Any, names: Sequence[str]) -> Any:
    """The runner's input with the tables that were put off."""
    waiting = getattr(runner_input, names[0])
    return (
        replace(runner_input, **dict(zip(names, waiting.make(), strict=True))) if isinstance(waiting, Waiting) else runner_input
    )


def make_weights(held: Any) -> Any:
    """A record of the runner's weights with SGLang's own in the place of what stands for them.

    They are made for this call and not kept: a second copy of all layers may not fit, and what is made while a CUDA graph is
    captured holds values when the graph runs, and in it alone.
    """
    made = cache(lambda make: make())

    def fill(value: Any) -> Any:
        if isinstance(value, StandIn):
            return made(value.make)[value.place]
        if not is_dataclass(value) or isinstance(value, type):
            return value
        old = {each.name: getattr(value, each.name) for each in fields(value)}
        new = {name: filled for name, each in old.items() if (filled := fill(each)) is not each}
        return replace(value, **new) if new else value

    return fill(held)


def read_layer(asked: RunnerCall, server: ServerState) -> tuple[LaidOut, Tensor]:
    """The problem that a call of the runner poses, its choice of experts not made yet, and the router's scores.

    Raise NotApplicableError with a short, stable reason where our kernels do not cover it.
    """
    for reason in _objections(asked, server):
        raise NotApplicableError(reason)
    hidden, weights, config = asked.inputs.hidden_states, asked.weights, asked.config
    shape = (hidden.shape[0], asked.waiting.top_k)
    problem = pose(
        hidden, getattr(weights.w13_weight, BRICKS), getattr(weights.w2_weight, BRICKS),
        gate_up_bias=weights.w13_bias, down_bias=weights.w2_bias,
        topk_weights=hidden.new_empty(shape, dtype=torch.float32), topk_ids=hidden.new_empty(shape, dtype=torch.int32),
        activation=replace(SWIGLU, alpha=float(config.gemm1_alpha), limit=float(config.gemm1_clamp_limit)),
    )  # fmt: skip
    return problem, asked.waiting.scores


def _objections(asked: RunnerCall, server: ServerState) -> Iterator[str]:
    """Why our kernels cannot compute this call, the plainest reason first."""
    if asked.hooks is not None:
        yield "LoRA hooks"
    if not isinstance(asked.waiting, Waiting):
        yield "a router whose scores did not wait"
    yield from _unasked(asked.config)
    known = KNOWN.union(asked.tables)
    for part in (asked.inputs, asked.weights):
        yield from (f"the unknown {each.name}" for each in fields(part) if each.name not in known)
    gate_up, down = (getattr(weight, BRICKS, None) for weight in (asked.weights.w13_weight, asked.weights.w2_weight))
    if gate_up is None or down is None:
        yield "weights that were not laid out in bricks"
    else:
        yield from _layout_objections(asked.inputs.hidden_states, asked.waiting.scores, gate_up)
    yield from list_server_objections(server, asked.inputs.hidden_states.device, is_new=True)


def _unasked(config: Any) -> Iterator[str]:
    for name, asked in ASKED.items():
        if (value := getattr(config, name, asked[0])) not in asked:
            yield f"{name}={value!r}"
    if config.gemm1_alpha is None or config.gemm1_clamp_limit is None:
        yield "another activation than gpt-oss'"


def _layout_objections(hidden: Tensor, scores: Tensor, gate_up: Bricks) -> Iterator[str]:
    if hidden.dtype not in LAYER_TYPES or hidden.shape[1] != gate_up.columns:
        yield "hidden states of another type or width"
    if not (hidden.is_contiguous() and scores.is_contiguous()):
        yield "hidden states or scores not contiguous"
    if not hidden.shape[0]:
        yield "no tokens"
    if scores.shape != (hidden.shape[0], gate_up.codes.shape[0]):
        yield "experts that are not all at hand"
