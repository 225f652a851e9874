"""SGLang's layer of 4-bit weights as an implementation: `triton_kernels`' products, its default for gpt-oss on Hopper.

The one place that knows this runner's internals. Written against the source of SGLang 0.5.15.post1 to 0.5.17; another version
that lacks a name used here is refused with that name: from 0.5.18 on `triton_kernels` has other names.

A server lays the weights out once, when it loads them, and chooses experts outside of the layer, together with the tables of
rows by expert that both products read. So these are steps of their own: `layer` does what was not done before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from perfgate_moe.engines.optional import load_names
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import SWIGLU, MicroScales, Problem

NEEDED = "SGLang 0.5.15.post1 to 0.5.17 with its triton_kernels"
WARPS = 8  # what SGLang lays scales out for
ALIGNMENT = 64
"""SGLang pads the intermediate size to multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product's weight and precision, as `triton_kernels` reads them, and its bias [E, N] in float32."""

    weight: Any
    precision: Any
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded(Problem):
    """A problem whose weights are laid out, and whose router's scores [M, E] or routing may have been made before."""

    gate_up_product: Product
    down_product: Product
    scores: Tensor | None = None
    routing: Sequence[Any] | None = None


def layer(problem: Problem) -> Tensor:
    """Route and compute. NotApplicableError says what this runner does not cover."""
    loaded, names = load(problem), _names()
    routing, gather, scatter = loaded.routing or route(loaded)
    gate_up, down = loaded.gate_up_product, loaded.down_product
    answer: Tensor = names.experts(
        loaded.hidden,
        w1=gate_up.weight, w1_pcg=gate_up.precision, b1=gate_up.bias,
        w2=down.weight, w2_pcg=down.precision, b2=down.bias,
        routing_data=routing, gather_indx=gather, scatter_indx=scatter,
        gemm1_alpha=loaded.activation.alpha, gemm1_clamp_limit=loaded.activation.limit,
    )  # fmt: skip
    return answer


def is_installed() -> bool:
    """Whether there is an SGLang with `triton_kernels` to compare with, and a GPU for it."""
    return all(map(find_spec, ("sglang", "triton_kernels"))) and torch.cuda.is_available()


def load(problem: Problem) -> Loaded:
    """Lay the weights out, once, as SGLang does when it loads a model. NotApplicableError says what is not covered."""
    if isinstance(problem, Loaded):
        return problem
    if not isinstance(problem.scales, MicroScales) or problem.hidden.dtype != torch.bfloat16:
        raise NotApplicableError("SGLang's triton_kernel runner is asked for 4-bit weights and bfloat16")
    if problem.activation != SWIGLU or problem.routed_scaling != 1.0 or not problem.tokens:
        raise NotApplicableError(
            "SGLang's triton_kernel runner is asked for gpt-oss' activation, unscaled, and at least one token"
        )
    if problem.intermediate_size % ALIGNMENT:
        raise NotApplicableError(
            f"SGLang pads intermediate sizes that are no multiple of {ALIGNMENT} for its triton_kernel runner"
        )
    if bool((problem.topk_ids < 0).any()):
        raise NotApplicableError("SGLang's triton_kernel runner has all experts at hand")
    names, scales = _names(), problem.scales
    return Loaded(
        **problem.list_fields(),
        gate_up_product=_lay_out(names, problem.gate_up, scales.gate_up, problem.gate_up_bias),
        down_product=_lay_out(names, problem.down, scales.down, problem.down_bias),
    )


def _lay_out(names: SimpleNamespace, pairs: Tensor, scales: Tensor, bias: Tensor | None) -> Product:
    weight, flex, scale = names.swizzle(pairs, scales, WARPS)
    precision = names.precision(weight_scale=scale, flex_ctx=names.flex(rhs_data=flex))
    return Product(weight=weight, precision=precision, bias=None if bias is None else bias.float())


def score(problem: Problem) -> Tensor:
    """Scores [M, E] of a router, whose largest are the problem's router weights at the problem's experts."""
    scores = torch.full((problem.tokens, problem.experts), -torch.inf, device=problem.hidden.device)
    return scores.scatter_(1, problem.topk_ids.long(), problem.topk_weights)


def route(problem: Loaded) -> tuple[Any, Any, Any]:
    """What SGLang makes of a router's scores: its choice, and the tables of rows by expert that both products read."""
    names = _names()
    scores = score(problem) if problem.scores is None else problem.scores
    chosen = names.topk(scores, problem.top_k, apply_softmax=False)
    sources, places = chosen.mask_metadata.col_sorted_indx, chosen.mask_metadata.row_sorted_indx
    rows = names.rows(chosen.mask_metadata.col_sum, places.shape[0])
    routing = names.routing(chosen.vals.flatten()[sources], rows.slice_sizes, problem.experts, problem.top_k, rows)
    return routing, names.gather(sources, places), names.scatter(places, sources)


def score_ahead(problem: Loaded) -> Loaded:
    """The problem with its router's scores, which a server has before the layer."""
    return replace(problem, scores=score(problem))


def route_ahead(problem: Problem) -> Loaded:
    """The problem with its routing, which the layer then does not make."""
    loaded = load(problem)
    return replace(loaded, routing=route(loaded))


def _names() -> SimpleNamespace:
    kernels = "triton_kernels.matmul_ogs"
    return load_names(
        NEEDED,
        experts="sglang.srt.layers.moe.fused_moe_triton.triton_kernels_moe:triton_kernel_fused_experts_with_bias",
        swizzle="sglang.srt.layers.quantization.mxfp4:_swizzle_mxfp4",
        precision=f"{kernels}:PrecisionConfig",
        flex=f"{kernels}:FlexCtx",
        routing=f"{kernels}:RoutingData",
        gather=f"{kernels}:GatherIndx",
        scatter=f"{kernels}:ScatterIndx",
        rows="triton_kernels.tensor:make_ragged_tensor_metadata",
        topk="triton_kernels.topk:topk",
    )
