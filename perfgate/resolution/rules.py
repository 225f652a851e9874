"""When a difference is a loss: one row a key. What has no row here is reported and never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.resolution.values import TunedTable
from perfgate.results.readings import SMALLER_POOL

_PLAIN_METHOD = "UnquantizedFusedMoEMethod"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """A key with what it means, and whether going from one value to another is a loss.

    `is_count` says that each model has a number of its own, so that one line holds them by direction.
    """

    means: str
    is_count: bool = False
    is_lost: Callable[[Any, Any], bool] = lambda *_: False


def _falls(*plain: str) -> Callable[[Any, Any], bool]:
    """Lost where the candidate takes one of the `plain` ways, which fit everything, and the base took none of them.

    A value names one way, or several with commas between.
    """

    def is_plain(value: Any) -> bool:
        return not set(plain).isdisjoint(str(value).split(", "))

    return lambda base, candidate: base is not None and not is_plain(base) and is_plain(candidate)


def _rank_tables(tables: Iterable[TunedTable]) -> int:
    """2 for a table of the arm's own Triton, 1 for another's, 0 for none."""
    return max(2 if one.is_own else 1 if one.triton else 0 for one in tables)


def _is_lost_table(base: Any, candidate: Any) -> bool:
    """A layer that no longer runs on Triton has no table to lose."""
    is_looked_up = isinstance(base, tuple) and isinstance(candidate, tuple)
    return is_looked_up and _rank_tables(candidate) < _rank_tables(base)


def _is_smaller(base: Any, candidate: Any) -> bool:
    return bool(candidate < base * (1 - SMALLER_POOL))


def _loses_way(base: Any, candidate: Any) -> bool:
    """Lost where one of the ways that the base has is no longer among the candidate's."""
    return not set(str(base).split(", ")) <= set(str(candidate).split(", "))


RULES: Mapping[str, KeyRule] = {
    "moe_runner": KeyRule(means="kernels of the expert layers", is_lost=_falls("triton", _PLAIN_METHOD)),
    "moe_method": KeyRule(means="how expert weights are held", is_lost=_falls(_PLAIN_METHOD)),
    "moe_tiles": KeyRule(means="table of tuned tiles, first product", is_lost=_is_lost_table),
    "moe_tiles_down": KeyRule(means="table of tuned tiles, second product", is_lost=_is_lost_table),
    "fused_shared_experts": KeyRule(means="shared experts in the routed ones' kernel", is_lost=lambda a, b: bool(a) and not b),
    "attention_prefill": KeyRule(means="attention of prefills", is_lost=_falls("torch_native", "flex_attention", "triton")),
    "attention_decode": KeyRule(means="attention of decode steps", is_lost=_falls("torch_native", "flex_attention", "triton")),
    "sampling": KeyRule(means="sampling", is_lost=_falls("pytorch")),
    "fp8_gemm": KeyRule(means="8-bit products", is_lost=_falls("triton_w8a8_block_fp8_linear", "torch_w8a8_block_fp8_linear")),
    "fp8_gemm_backend": KeyRule(means="8-bit products, as set", is_lost=_falls("triton", "torch")),
    "fp4_gemm_backend": KeyRule(means="4-bit products, as set", is_lost=_falls("marlin", "torch")),
    "all_reduce": KeyRule(means="sums over GPUs", is_lost=_loses_way),
    "graph_decode": KeyRule(means="graphs of decode steps", is_lost=_falls("disabled")),
    "graph_decode_sizes": KeyRule(means="batch sizes with a graph"),
    "graph_prefill": KeyRule(means="graphs of prefills", is_lost=_falls("disabled")),
    "graph_prefill_sizes": KeyRule(means="prefill tokens with a graph"),
    "chunked_prefill": KeyRule(means="tokens of a prefill chunk"),
    "kv_dtype": KeyRule(means="type of the KV cache"),
    "weights_bytes": KeyRule(means="weights on one GPU, bytes", is_count=True),
    "pool_tokens": KeyRule(means="tokens of the KV pool, estimated", is_count=True, is_lost=_is_smaller),
}

FLAG = "flag "
"""What the key of an argument begins with."""

NEW, GONE = "arguments that are new", "arguments that are gone"
"""The keys of those that only one arm knows, but for those that are off."""

FUSED_FLAGS: Mapping[str, bool] = {
    "disable_shared_experts_fusion": False,
    "disable_overlap_schedule": False,
    "disable_radix_cache": False,
    "disable_cuda_graph_padding": False,
    "disable_chunked_prefix_cache": False,
    "enable_fused_qk_norm_rope": True,
    "enable_fused_moe_sum_all_reduce": True,
}
"""Arguments that say whether a fused or fast path is taken, with the value that takes it."""


def is_loss(key: str, base: Any, candidate: Any) -> bool:
    """Whether a key that went from one value to another, in one model on one GPU, lost something."""
    if key.startswith(FLAG):
        taken = FUSED_FLAGS.get(key.removeprefix(FLAG))
        return taken is not None and base is taken and candidate is not taken
    return key in RULES and RULES[key].is_lost(base, candidate)
