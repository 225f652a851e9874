"""SGLang's other runners of the layer as implementations: Marlin's and FlashInfer's for 4 bits, DeepGEMM's for 8.

A server chooses them by `--moe-runner-backend`. The one place that knows how each has its weights; what runs is SGLang's own
`MoeRunner`, as a server calls it. Written against the source of SGLang 0.5.16; a version that lacks a name used here is refused
with that name. Weights are laid out once, by `load`; `layer` does so where that was not done before.

SGLang's `humming` runner is none of them: up to 0.5.23 it has no activation of gpt-oss, the only one of our 4-bit layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from perfgate_moe.engines.optional import load_names
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import MICRO_BLOCK, SCALE_BLOCK, SILU, SWIGLU, BlockScales, MicroScales, Problem

NEEDED = "SGLang 0.5.16 or one like it"
MARLIN, FLASHINFER, DEEP_GEMM = "sglang-marlin", "sglang-flashinfer-mxfp4", "sglang-deep-gemm"
MARLIN_HIDDEN, MARLIN_INTERMEDIATE = 256, 128
"""SGLang makes weights for its Marlin runner of multiples of these."""
FLASHINFER_MULTIPLE = 128
"""SGLang pads both sizes to multiples of this for FlashInfer's products."""
TUNED_TOKENS = 8192
"""Up to so many tokens FlashInfer chooses tiles by their times; a server has it choose up to its largest step of decoding.

It maps a call's tokens by the bound of the last bound that was new: a number that is timed later would find other tiles.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One of SGLang's runners: what a server's option calls it, the packages that it needs, and how it takes weights.

    `places` are its names beside those that all runners need; `take` makes SGLang's record of its weights, or raises
    NotApplicableError. It has hidden states of a `multiple` of columns. One that `is_tuned` chooses tiles by their times, up to
    TUNED_TOKENS tokens, when its weights are loaded.
    """

    backend: str
    packages: tuple[str, ...]
    places: dict[str, str]
    take: Callable[[Problem, SimpleNamespace], Any]
    multiple: int = 1
    is_tuned: bool = False

    def is_installed(self) -> bool:
        """Whether there is an SGLang with this runner's packages to compare with, and a GPU for it."""
        return all(map(find_spec, ("sglang", *self.packages))) and torch.cuda.is_available()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared(Problem):
    """A problem whose weights are laid out, and the runner that reads them."""

    runner: Any
    weights: Any
    padding: int
    """Columns of zeros that hidden states get before the runner has them."""


def marlin(problem: Problem) -> Tensor:
    """The layer by Marlin's products."""
    return layer(MARLIN, problem)


def flashinfer(problem: Problem) -> Tensor:
    """The layer by FlashInfer's products of CUTLASS."""
    return layer(FLASHINFER, problem)


def deep_gemm(problem: Problem) -> Tensor:
    """The layer by DeepGEMM's products."""
    return layer(DEEP_GEMM, problem)


def layer(name: str, problem: Problem) -> Tensor:
    """Compute by a runner. NotApplicableError says what it does not cover."""
    loaded = problem if isinstance(problem, Prepared) else load(name, problem)
    names = _names(RUNNERS[name])
    # A runner may take the memory from the tensor that it is handed: this one is nobody else's.
    hidden = pad(loaded.hidden, (0, loaded.padding)) if loaded.padding else loaded.hidden.view_as(loaded.hidden)
    chosen = names.topk(loaded.topk_weights, loaded.topk_ids, loaded.topk_weights)
    handed = names.dispatch(hidden_states=hidden, hidden_states_scale=None, topk_output=chosen)
    answer: Tensor = loaded.runner.run(handed, loaded.weights).hidden_states
    return answer[:, : loaded.hidden_size].contiguous() if loaded.padding else answer


def load(name: str, problem: Problem) -> Prepared:
    """Lay the weights out as SGLang does when it loads a model. NotApplicableError says what the runner does not cover."""
    if problem.hidden.dtype != torch.bfloat16 or not problem.tokens or problem.weight_on_input:
        raise NotApplicableError(f"{name} is asked for bfloat16, at least one token, and router weights on the output")
    wanted = RUNNERS[name]
    names = _names(wanted)
    weights = wanted.take(problem, names)
    loaded = Prepared(
        **problem.list_fields(),
        runner=names.runner(names.backend(wanted.backend), _configure(problem, names)),
        weights=weights,
        padding=-problem.hidden_size % wanted.multiple,
    )
    if wanted.is_tuned:
        with names.tuning():
            layer(name, _draw_many(loaded))
    return loaded


def _draw_many(loaded: Prepared) -> Prepared:
    """The layer with TUNED_TOKENS tokens, whose slots go round the experts."""
    slots = torch.arange(TUNED_TOKENS * loaded.top_k, device=loaded.hidden.device, dtype=loaded.topk_ids.dtype)
    hidden = loaded.hidden.new_zeros(TUNED_TOKENS, loaded.hidden_size)
    return replace(
        loaded,
        hidden=hidden,
        out=hidden,
        topk_ids=slots.view(TUNED_TOKENS, loaded.top_k) % loaded.experts,
        topk_weights=loaded.topk_weights.new_ones(TUNED_TOKENS, loaded.top_k),
    )


def _configure(problem: Problem, names: SimpleNamespace) -> Any:
    activation = problem.activation
    return names.config(
        num_experts=problem.experts,
        num_local_experts=problem.experts,
        hidden_size=problem.hidden_size,
        intermediate_size_per_partition=problem.intermediate_size,
        top_k=problem.top_k,
        params_dtype=problem.hidden.dtype,
        activation="silu",
        inplace=False,
        routed_scaling_factor=problem.routed_scaling,
        gemm1_alpha=None if activation.limit is None else activation.alpha,
        gemm1_clamp_limit=activation.limit,
        gate_up_interleaved=activation.interleaved,
    )


def _take_marlin(problem: Problem, names: SimpleNamespace) -> Any:
    """Gates, ups and their scales apart, in Marlin's order, as `Mxfp4MoEMethod` has them made."""
    own = _make_layer(MARLIN, problem, MARLIN_HIDDEN, MARLIN_INTERMEDIATE)
    names.part(own)
    names.prepare(own)
    return names.weights(
        w13_qweight=own.w13_weight,
        w2_qweight=own.w2_weight,
        w13_scales=own.w13_weight_scale,
        w2_scales=own.w2_weight_scale,
        w13_g_idx_sort_indices=None,
        w2_g_idx_sort_indices=None,
        weight_bits=4,
        is_k_full=True,
        w13_bias=own.w13_weight_bias,
        w2_bias=own.w2_weight_bias,
    )


def _take_flashinfer(problem: Problem, names: SimpleNamespace) -> Any:
    """Ups before gates, padded, in FlashInfer's order, as `Mxfp4MoEMethod` makes them on Hopper; activations keep 16 bits."""
    own = _make_layer(FLASHINFER, problem, 1, 1)
    own.num_local_experts = problem.experts
    sizes = (problem.hidden_size, problem.intermediate_size)
    hidden, between = (size + -size % FLASHINFER_MULTIPLE for size in sizes)
    standing = SimpleNamespace(_padded_hidden=hidden, _padded_intermediate=between)
    names.method._process_weights_for_sm90_cutlass(standing, own)  # noqa: SLF001 - asks nothing else of its server
    _be_one_rank(names.module)
    return names.weights(
        w13_weight=own.w13_weight,
        w2_weight=own.w2_weight,
        w13_weight_scale=own.w13_weight_scale,
        w2_weight_scale=own.w2_weight_scale,
        w13_bias=own.w13_weight_bias,
        w2_bias=own.w2_weight_bias,
        swiglu_alpha=own.swiglu_alpha,
        swiglu_beta=own.swiglu_beta,
        swiglu_limit=own.swiglu_limit,
        padded_hidden=hidden,
    )


def _make_layer(runner: str, problem: Problem, hidden_multiple: int, between_multiple: int) -> torch.nn.Module:
    """A layer of SGLang's with the problem's weights, zeros behind them up to multiples, and zeros where there is no bias.

    NotApplicableError says what of the problem is not of gpt-oss, for `runner`.
    """
    scales, experts = problem.scales, problem.experts
    if not isinstance(scales, MicroScales):
        raise NotApplicableError(f"{runner} is asked for 4-bit weights")
    if problem.activation != SWIGLU or problem.routed_scaling != 1.0:
        raise NotApplicableError(f"{runner} is asked for gpt-oss' activation, unscaled")
    if bool((problem.topk_ids < 0).any()):
        raise NotApplicableError(f"{runner} has all experts at hand")
    hidden = problem.hidden_size + -problem.hidden_size % hidden_multiple
    between = problem.intermediate_size + -problem.intermediate_size % between_multiple
    own = torch.nn.Module()
    for name, tensor, shape in (
        ("w13_weight", problem.gate_up, (experts, 2 * between, hidden // 2)),
        ("w13_weight_scale", scales.gate_up, (experts, 2 * between, hidden // MICRO_BLOCK)),
        ("w13_weight_bias", problem.gate_up_bias, (experts, 2 * between)),
        ("w2_weight", problem.down, (experts, hidden, between // 2)),
        ("w2_weight_scale", scales.down, (experts, hidden, between // MICRO_BLOCK)),
        ("w2_weight_bias", problem.down_bias, (experts, hidden)),
    ):
        made = torch.zeros(shape, dtype=torch.bfloat16 if name.endswith("bias") else torch.uint8, device=problem.hidden.device)
        if tensor is not None:
            made[tuple(slice(size) for size in tensor.shape)] = tensor
        own.register_parameter(name, torch.nn.Parameter(made, requires_grad=False))
    return own


def _take_deep_gemm(problem: Problem, names: SimpleNamespace) -> Any:
    """Weights and scales as they are, which is how this runner has them on Hopper."""
    if not isinstance(problem.scales, BlockScales):
        raise NotApplicableError(f"{DEEP_GEMM} is asked for 8-bit weights")
    if problem.activation != SILU or problem.gate_up_bias is not None or problem.down_bias is not None:
        raise NotApplicableError(f"{DEEP_GEMM} computes SiLU without biases")
    if problem.hidden_size % SCALE_BLOCK or problem.intermediate_size % SCALE_BLOCK:
        raise NotApplicableError(f"{DEEP_GEMM} rounds activations in whole groups of {SCALE_BLOCK} columns only")
    if not names.is_enabled:
        raise NotApplicableError(f"{DEEP_GEMM} needs sgl-deep-gemm and a GPU of Hopper's or later, which SGLang does not find")
    _be_one_rank(names.module)
    # A server compiles for every number of rows when it starts, which takes many minutes; here each when it is asked for.
    names.compiling._ENABLE_JIT_DEEPGEMM_PRECOMPILE = False  # noqa: SLF001 - its variable is read long before
    return names.weights(
        w13_weight=problem.gate_up,
        w2_weight=problem.down,
        use_fp8=True,
        w13_scale=problem.scales.gate_up,
        w2_scale=problem.scales.down,
        block_shape=[SCALE_BLOCK, SCALE_BLOCK],
    )


def _be_one_rank(module: Any) -> None:
    """One process has no tensor-parallel group: give a runner's allocator the answer it would get with one rank."""
    module.get_tp_group = lambda: None
    module.is_allocation_symmetric = lambda: False


_RUNNER, _WRAPPER = "sglang.srt.layers.moe.moe_runner", "sglang.srt.layers.deep_gemm_wrapper"
RUNNERS = {
    MARLIN: Backend(
        backend="marlin",
        packages=("tvm_ffi",),
        places={
            "weights": f"{_RUNNER}.marlin:MarlinMoeQuantInfo",
            "part": "sglang.srt.layers.quantization.marlin_utils_fp4:deinterleave_moe_mxfp4_w13_for_marlin",
            "prepare": "sglang.srt.layers.quantization.marlin_utils_fp4:prepare_moe_mxfp4_layer_for_marlin",
        },
        take=_take_marlin,
        multiple=MARLIN_HIDDEN,
    ),
    FLASHINFER: Backend(
        backend="flashinfer_mxfp4",
        # The last is FlashInfer's package of libraries: without it a first call compiles 182 sources.
        packages=("tvm_ffi", "flashinfer", "flashinfer_jit_cache"),
        places={
            "weights": f"{_RUNNER}.flashinfer_cutlass:FlashInferCutlassMxfp4MoeQuantInfo",
            "module": f"{_RUNNER}.flashinfer_cutlass",
            "method": "sglang.srt.layers.quantization.mxfp4:Mxfp4MoEMethod",
            "tuning": "flashinfer.autotuner:autotune",
        },
        take=_take_flashinfer,
        is_tuned=True,
    ),
    DEEP_GEMM: Backend(
        backend="deep_gemm",
        packages=("tvm_ffi", "deep_gemm"),
        places={
            "weights": f"{_RUNNER}.deep_gemm:DeepGemmMoeQuantInfo",
            "module": f"{_RUNNER}.deep_gemm",
            "compiling": f"{_WRAPPER}.compile_utils",
            "is_enabled": f"{_WRAPPER}.configurer:ENABLE_JIT_DEEPGEMM",
        },
        take=_take_deep_gemm,
    ),
}


def _names(wanted: Backend) -> SimpleNamespace:
    return load_names(
        NEEDED,
        runner=f"{_RUNNER}:MoeRunner",
        config=f"{_RUNNER}:MoeRunnerConfig",
        backend="sglang.srt.layers.moe.utils:MoeRunnerBackend",
        dispatch="sglang.srt.layers.moe.token_dispatcher.standard:StandardDispatchOutput",
        topk="sglang.srt.layers.moe.topk:StandardTopKOutput",
        **wanted.places,
    )
