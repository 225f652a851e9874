"""How a served model uses its experts, from the choices of its router: values and formulas, no file and no server.

A mixture of experts whose tokens all choose the same experts does the work of a dense model. Five numbers of each layer tell:

- experts used, and the effective number of experts, `exp(H)` of the entropy `H = -sum p ln p` of the load shares `p` (the Hill
  number of order one: M. O. Hill, Ecology 54 (1973) 427-432; `experts` where all have the same load, 1 where one has it all);
- distinct experts a decode step: how many experts the tokens that decode together touch. Uniform routing of `n` tokens to `k`
  of `E` experts touches `E (1 - (1 - k/E)^n)`: one expert is left out by one token with probability `1 - k/E`;
- the dependence on the token: the share of a token's experts that are chosen again when the same text is sent a second time,
  less the share that a different token at the same place of another text chooses too. It is 0 for a router that always takes
  the same experts, cycles by position or by row, counts, or draws, since none of them looks at the token; 1 where equal tokens
  choose the same experts and different ones share none;
- how far a token's experts differ from those it chose in the layer before (`1 - k/E` for independent layers, 0 for clones);
- the load of the busiest expert over the mean load; where experts are spread over ranks, that of the busiest rank, too.

An "overlap" of two choices is the number of experts in both over the number that a token visits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, log
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.uint16]
"""The different experts that each token visits, along the last axis."""

MIN_DISTINCT_SHARE = 0.5
"""A decode step that touches less than this share of the experts of uniform routing is not a mixture of experts' step."""

MIN_DEPENDENCE = 0.1
"""The least dependence on the token: routers that look at it reach 0.5 and more, those that do not scatter around 0."""

ARM_DIFFERENCE_FLOOR = 0.25
OWN_SCATTER_FACTOR = 3.0
"""Arms may choose differently by this multiple of the base's own scatter, or by the floor: another kernel rounds otherwise, and
a choice near a tie flips. In the last of 24 layers of drawn weights two right runners differed by 13 %, SGLang's fused sum from
its plain layer by 15 %, and the mildest of three damaged models by 47 % (benchmarks/h100/serving, h200/serving/routed)."""


class Unknown(StrEnum):
    """Why the expert use of an arm is not known."""

    NOT_MEASURED = "not measured"
    ENGINE = "engine"
    NO_RECORDER = "no recorder"
    NOT_SEEN = "not seen"
    INCOMPLETE = "incomplete"
    PLACED = "placed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """What the router chose for one text: its token ids, and the choices by layer and token."""

    tokens: tuple[int, ...]
    chosen: Choices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Texts of equal length and their choices. The first `prompt_len` tokens of each are the prompt, the others its answer.

    `tokens_a_step` of the texts decode together. `again` are the first texts a second time, each in another forward pass.
    """

    experts: int
    top_k: int
    prompt_len: int
    tokens_a_step: int
    texts: tuple[Traced, ...]
    again: tuple[Traced, ...]

    @property
    def layers(self) -> int:
        """How many layers were traced."""
        return len(self.texts[0].chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUse:
    """How one layer uses its experts; the module's text says how each number is made.

    `layer` counts the layers that route, from 0; `loads` is how often each expert was chosen, by its number.
    `differs_from_before_ratio` is absent in the first of them. `own_scatter_ratio` is one minus the overlap of the same text
    sent twice; `differs_from_base_ratio` one minus the overlap with the base's choices for the same prompts, absent for the
    base itself.
    """

    layer: int
    experts: int
    top_k: int
    used: int
    effective: float
    distinct_a_step: float
    uniform_a_step: float
    max_over_mean: float
    dependence: float
    own_scatter_ratio: float
    loads: tuple[int, ...]
    differs_from_before_ratio: float | None = None
    differs_from_base_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertUse:
    """The expert use of one arm: its layers, or why it is unknown. `tokens_a_step` tokens make a decode step."""

    layers: tuple[LayerUse, ...] = ()
    tokens_a_step: int = 0
    unknown: Unknown | None = None
    is_like_base: bool = field(default=True)

    @property
    def is_known(self) -> bool:
        """Whether the layers were measured."""
        return self.unknown is None


NOT_MEASURED = ExpertUse(unknown=Unknown.NOT_MEASURED)


class FaultKind(StrEnum):
    """What makes a layer no evidence on a MoE kernel."""

    FEW = "few"
    BLIND = "blind"
    APART = "apart"
    SHAPE = "shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Layers of one arm that fail in one way; `worst` is the first of those that are furthest off."""

    kind: FaultKind
    worst: LayerUse
    layers: int
    allowed: float


def expect_distinct(experts: int, top_k: int, tokens: int) -> float:
    """The expected number of distinct experts that `tokens` uniformly routed tokens touch in one layer."""
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def count_effective(loads: Iterable[int]) -> float:
    """The effective number of experts: exp of the entropy of the load; 0 where there was none."""
    some = [load for load in loads if load > 0]
    total = sum(some)
    return exp(-sum(load / total * log(load / total) for load in some)) if total else 0.0


def measure_rank_load(layer: LayerUse, ranks: int) -> float:
    """The load of the busiest rank over the mean load, where each of `ranks` holds as many experts, in the order of numbers."""
    parts = np.array(layer.loads).reshape(ranks, -1).sum(axis=1)
    return float(parts.max() / parts.mean())


def measure_use(trace: Trace) -> ExpertUse:
    """Every layer's numbers, without those that compare with the base."""
    layers = tuple(_measure_layer(trace, layer) for layer in range(trace.layers))
    return ExpertUse(layers=layers, tokens_a_step=trace.tokens_a_step)


def compare_with_base(use: ExpertUse, trace: Trace, base: Trace) -> ExpertUse:
    """Add to each layer how far its choices differ from the base's for the same prompts.

    Where the shapes differ, or the prompts, there is nothing to compare: `is_like_base` is then False.
    """
    if (trace.experts, trace.top_k, trace.layers) != (base.experts, base.top_k, base.layers) or not _have_same_prompts(
        trace, base
    ):
        return replace(use, is_like_base=False)
    layers = (replace(layer, differs_from_base_ratio=1.0 - _compare_prompts(trace, base, layer.layer)) for layer in use.layers)
    return replace(use, layers=tuple(layers))


def find_faults(use: ExpertUse, base: ExpertUse | None = None) -> Iterator[Fault]:
    """Name what makes `use` no mixture of experts, and where it routes differently from `base`; nothing of an unknown one."""
    if not use.is_known:
        return
    few = [layer for layer in use.layers if layer.distinct_a_step < MIN_DISTINCT_SHARE * layer.uniform_a_step]
    if few:
        worst = min(few, key=lambda layer: layer.distinct_a_step / layer.uniform_a_step)
        yield Fault(kind=FaultKind.FEW, worst=worst, layers=len(few), allowed=MIN_DISTINCT_SHARE * worst.uniform_a_step)
    blind = [layer for layer in use.layers if layer.dependence < MIN_DEPENDENCE]
    if blind:
        worst = min(blind, key=lambda layer: layer.dependence)
        yield Fault(kind=FaultKind.BLIND, worst=worst, layers=len(blind), allowed=MIN_DEPENDENCE)
    if base is None or not base.is_known:
        return
    if not use.is_like_base:
        yield Fault(kind=FaultKind.SHAPE, worst=use.layers[0], layers=len(use.layers), allowed=0.0)
        return
    apart = [
        (layer, layer.differs_from_base_ratio, allow_difference(own))
        for layer, own in zip(use.layers, base.layers, strict=True)
        if layer.differs_from_base_ratio is not None and layer.differs_from_base_ratio > allow_difference(own)
    ]
    if apart:
        found, _, allowed = max(apart, key=lambda one: one[1] - one[2])
        yield Fault(kind=FaultKind.APART, worst=found, layers=len(apart), allowed=allowed)


def allow_difference(base: LayerUse) -> float:
    """How far a layer of the candidate may choose differently from this layer of the base."""
    return max(ARM_DIFFERENCE_FLOOR, OWN_SCATTER_FACTOR * base.own_scatter_ratio)


def _measure_layer(trace: Trace, layer: int) -> LayerUse:
    rows = _take_layer(trace.texts, layer)
    by_number = np.bincount(rows.ravel(), minlength=trace.experts)
    loads = _order_loads(rows, by_number)
    repeated = _overlap_again(trace, layer)
    return LayerUse(
        layer=layer,
        experts=trace.experts,
        top_k=trace.top_k,
        used=len(loads),
        effective=count_effective(loads),
        distinct_a_step=_count_distinct(trace, rows),
        uniform_a_step=expect_distinct(trace.experts, trace.top_k, trace.tokens_a_step),
        max_over_mean=max(loads) * trace.experts / sum(loads),
        dependence=repeated - _overlap_others(trace, rows),
        own_scatter_ratio=1.0 - repeated,
        loads=tuple(by_number.tolist()),
        differs_from_before_ratio=1.0 - _mean_overlap(rows, _take_layer(trace.texts, layer - 1)) if layer else None,
    )


def _take_layer(texts: Iterable[Traced], layer: int) -> Choices:
    """The choices of one layer, by text and token."""
    return np.stack([text.chosen[layer] for text in texts])


def _order_loads(rows: Choices, loads: NDArray[np.intp]) -> list[int]:
    """The `loads` of experts in the order in which they come up first: it rounds the last digit of their entropy."""
    choices = rows.reshape(-1, rows.shape[-1])
    first = np.unique(choices, return_index=True)[1] // rows.shape[-1]
    found = dict.fromkeys(expert for row in np.unique(first) for expert in frozenset(choices[row].tolist()))
    return [int(loads[expert]) for expert in found]


def _count_distinct(trace: Trace, rows: Choices) -> float:
    """Mean number of experts that a step touches, over the positions of the answers and the groups that decode together."""
    size = trace.tokens_a_step
    answers = rows[: len(rows) // size * size, trace.prompt_len :]
    groups = answers.reshape(-1, size, *answers.shape[1:]).swapaxes(1, 2)
    touched = np.sort(groups.reshape(-1, size * trace.top_k), axis=-1)
    return fmean((1 + np.count_nonzero(touched[:, 1:] != touched[:, :-1], axis=-1)).tolist())


def _overlap_again(trace: Trace, layer: int) -> float:
    again = _take_layer(trace.again, layer)
    return _mean_overlap(_take_layer(trace.texts[: len(again)], layer), again)


def _mean_overlap(one: Choices, other: Choices) -> float:
    return fmean(_overlap(one, other).ravel().tolist())


def _overlap(one: Choices, other: Choices) -> NDArray[np.float64]:
    """The overlap of each choice with the one at its place."""
    shared = np.count_nonzero(one[..., :, None] == other[..., None, :], axis=(-2, -1))
    found: NDArray[np.float64] = shared / one.shape[-1]
    return found


def _overlap_others(trace: Trace, rows: Choices) -> float:
    """The overlap of different tokens at one position of neighbouring texts; that of all where no two tokens differ."""
    tokens = np.array([text.tokens for text in trace.texts])
    # The last text's neighbour is the first: every text counts twice.
    found = _overlap(rows, np.roll(rows, -1, axis=0))[tokens != np.roll(tokens, -1, axis=0)]
    # Texts that are all alike cannot show that a router looks at them.
    return fmean(found.tolist()) if found.size else 1.0


def _have_same_prompts(one: Trace, other: Trace) -> bool:
    def prompts(trace: Trace) -> list[tuple[int, ...]]:
        return [text.tokens[: trace.prompt_len] for text in trace.texts]

    return one.prompt_len == other.prompt_len and prompts(one) == prompts(other)


def _compare_prompts(trace: Trace, base: Trace, layer: int) -> float:
    one, other = (_take_layer(each.texts, layer)[:, : trace.prompt_len] for each in (trace, base))
    return _mean_overlap(one, other)
