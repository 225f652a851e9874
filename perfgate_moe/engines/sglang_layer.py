"""What the plug-in knows of SGLang's Triton MoE layer, as data: what it hooks, and which parameters that takes since when.

Read in the source of the versions from FIRST to LAST. Two functions are hooked: LAYER is the whole layer, SEQUENCE is where
LoRA and the split runner enter it, after alignment.

SGLang has other places for kernels of others. None of them reaches this layer, so it is hooked through SGLang's own registry of
hooks (`sglang.srt.plugins`):

- `sglang.kernels` (0.5.16 on) is a list of kernels with a selector, but the layer imports its Triton kernels by name, and a
  second kernel for the same operator and backend is refused.
- `register_moe_runner_core` (0.5.19 on) takes a runner of our own. Without LoRA the function that is registered for the Triton
  runner goes first, and layers that are not quantised ask for that runner by name.
- Kernel plug-ins (`sglang.kernels.plugin_kernels`, 0.5.23 on) replace the whole step of one model on one card.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST, LAST = "0.5.15.post1", "0.5.23"

MODULE = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
LAYER, SEQUENCE = "fused_experts_impl", "_fused_moe_kernel_sequence"

ALLOCATOR = "sglang.srt.distributed.device_communicators.pynccl_allocator"
"""Has `is_symmetric_memory_enabled`. The layer asks it since 0.5.16."""

ROUTER, TABLES = "sglang.srt.layers.moe.topk", "TritonKernelTopKOutput"
LOADER, SWIZZLE = "sglang.srt.layers.quantization.mxfp4", "_swizzle_mxfp4"
RUNNER, CORE, OUTPUT = "sglang.srt.layers.moe.moe_runner.triton_kernels", "TritonKernelsRunnerCore", "TritonKernelsRunnerOutput"
"""SGLang's runner of 4-bit weights, and where its tables and its weights are made."""

OPTIONS, OPTIONS_OF = "sglang.srt.runtime_context", "get_server_args"
GRAPHS, IS_GRAPH = "sglang.srt.model_executor.cuda_graph_config", "check_cuda_graph_backend"
"""Where a server's options are found while it loads a model, and whether a phase's graphs are of a kind."""

_TENSORS = frozenset({"hidden_states", "w1", "w2", "topk_weights", "topk_ids", "b1", "b2"})
_QUANTISED = frozenset({"use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant"})
_SCALES = frozenset({"w1_scale", "w2_scale", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape"})
_ACTIVATION = frozenset({"activation", "is_gated", "gemm1_alpha", "gemm1_limit", "swiglu_limit", "gate_up_interleaved"})
_ANSWER = frozenset({"inplace", "no_combine", "apply_router_weight_on_input", "routed_scaling_factor", "filter_expert"})
_BOTH = _TENSORS | _QUANTISED | _SCALES | _ACTIVATION | _ANSWER
_ALIGNED = frozenset({"sorted_token_ids", "expert_ids", "num_tokens_post_padded"})
_PLANNED = frozenset({"config", "down_config", "down_moe_use_tma", "hooks"})

TAKEN = {LAYER: _BOTH, SEQUENCE: _BOTH | _ALIGNED | _PLANNED}
"""The parameters of each function in FIRST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One that came later: `since` is the first version with it.

    `asks` is what a call asks for that gives it a value other than None or False, and what our kernels do not do; None where it
    changes nothing that they compute.
    """

    name: str
    since: str
    asks: str | None
    functions: tuple[str, ...] = (LAYER, SEQUENCE)


ADDED = (
    Parameter(name="a1_q", since="0.5.17", asks="activations rounded beforehand"),
    # How SGLang's own first product loads its weights.
    Parameter(name="up_moe_use_tma", since="0.5.18", asks=None, functions=(SEQUENCE,)),
    Parameter(name="fuse_swiglu_interleaved", since="0.5.18", asks="rows of gate and up interleaved at load"),
    Parameter(name="defer_sum", since="0.5.23", asks="the sum over experts left to the caller"),
    # Changes the answer of `no_combine` alone, which is left to SGLang by itself.
    Parameter(name="no_combine_keep_router_weight", since="0.5.23", asks=None),
)


def find_since(function: str, taken: Collection[str]) -> str | None:
    """The version since which a function takes exactly these parameters; None where none that was read did."""
    known, since = set(TAKEN[function]), FIRST
    if known == set(taken):
        return since
    for version in dict.fromkeys(each.since for each in ADDED):
        known |= {each.name for each in ADDED if each.since == version and function in each.functions}
        if known == set(taken):
            return version
    return None


def list_strange(function: str, taken: Collection[str]) -> str:
    """In words, what a function takes that no version read did, and what it no longer takes."""
    known = TAKEN[function] | {each.name for each in ADDED if function in each.functions}
    parts = (("the unknown", set(taken) - known), ("no", TAKEN[function] - set(taken)))
    told = [f"{word} {', '.join(sorted(names))}" for word, names in parts if names]
    return f"takes {' and '.join(told)}" if told else "takes known parameters in a combination that no version read has"
