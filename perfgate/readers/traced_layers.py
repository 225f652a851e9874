"""Which layers of a model the time of a trace belongs to: by the names that kernels have, and by what runs around them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perfgate.evidence import TracedLayer

_NAMED: Mapping[TracedLayer, re.Pattern[str]] = {
    "MoE": re.compile(r"moe|expert|router|top_?k|_matmul_ogs", re.IGNORECASE),
    "attention": re.compile(
        r"attention|attn|fmha|flash_?(fwd|mla)|mla|rope|rotary|kv_?cache|_fwd_(grouped_)?kernel|BatchDecode|BatchPrefill"
        r"|PagedKV|MergeState|flash::",
        re.IGNORECASE,
    ),
    "norms": re.compile(r"(rms|layer)_?norm", re.IGNORECASE),
    "communication": re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE),
}
"""Names of kernels and operators of SGLang, FlashInfer, FlashAttention, NCCL; the first row that fits decides."""

_LAYERS: tuple[TracedLayer, ...] = ("MoE", "attention")
_ENDS: tuple[TracedLayer, ...] = ("norms", "communication")
_DENSE = re.compile(r"gemm|nvjet|cutlass|splitK|aten::(mm|addmm|bmm|linear|matmul)$|packed_linear", re.IGNORECASE)


def sum_layers(runs: Iterable[Sequence[tuple[str, float]]]) -> dict[TracedLayer, float]:
    """Microseconds of each kind of layer, from the names and times of each stream in the order in which they ran.

    A norm or a message between GPUs ends a layer, so a name that tells no layer belongs to the one that runs around it. What
    stands in none, as the head, a dense block, sampling and copies between steps, is a dense product by its name, or the rest.
    """
    found: defaultdict[TracedLayer, float] = defaultdict(float)
    for run in runs:
        for layer, (_, time_us) in zip(_tell(tuple(name for name, _ in run)), run, strict=True):
            found[layer] += time_us
    return dict(found)


def _tell(names: Sequence[str]) -> Iterator[TracedLayer]:
    # A trace calls some hundred kernels some ten thousand times.
    layers = {name: _find_named(name) for name in set(names)}
    known = tuple(layers[name] for name in names)
    before, after = _carry(known), tuple(reversed(_carry(known[::-1])))
    for name, own, one, other in zip(names, known, before, after, strict=True):
        yield own or _find_around(one, other) or ("dense products" if _DENSE.search(name) else "the rest")


def _find_around(before: TracedLayer | None, after: TracedLayer | None) -> TracedLayer | None:
    if before in _LAYERS and after in (before, *_ENDS):
        return before
    return after if before in _ENDS and after in _LAYERS else None


def _find_named(name: str) -> TracedLayer | None:
    return next((layer for layer, pattern in _NAMED.items() if pattern.search(name)), None)


def _carry(known: Iterable[TracedLayer | None]) -> tuple[TracedLayer | None, ...]:
    """Beside each place the last layer that was known by then."""
    last: TracedLayer | None = None
    carried = []
    for layer in known:
        last = layer or last
        carried.append(last)
    return tuple(carried)
