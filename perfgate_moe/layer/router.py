"""A router's choice: which experts take a token, and with which weights."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.layer.programs import begin


@triton.jit
def choose_experts(
    scores: tl.tensor,
    weights: tl.tensor,
    ids: tl.tensor,
    experts: tl.tensor,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """One token: its TOP_K highest scores, of equal ones the lower expert first, and their softmax."""
    begin(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    lanes, slots = tl.arange(0, LANES), tl.arange(0, SLOTS)
    left = tl.load(scores + token * experts + lanes, mask=lanes < experts, other=float("-inf")).to(tl.float32)
    highest = tl.max(left, axis=0)
    powers = tl.zeros([SLOTS], dtype=tl.float32)
    chosen = tl.zeros([SLOTS], dtype=tl.int32)
    for slot in tl.static_range(TOP_K):
        best = tl.max(left, axis=0)
        expert = tl.minimum(tl.argmax(left, axis=0), experts - 1)  # whatever NaN does to an order
        powers = tl.where(slots == slot, tl.exp(best - highest), powers)
        chosen = tl.where(slots == slot, expert, chosen)
        left = tl.where(lanes == expert, float("-inf"), left)
    is_slot = slots < TOP_K
    tl.store(weights + token * TOP_K + slots, powers / tl.sum(powers, axis=0), mask=is_slot)
    tl.store(ids + token * TOP_K + slots, chosen, mask=is_slot)


def choose(scores: Tensor, weights: Tensor, ids: Tensor, launch: dict[str, bool]) -> None:
    """Fill `weights` float32 and `ids` int32, both [M, k], from a router's `scores` [M, E]: softmax over the k highest."""
    tokens, top_k = ids.shape
    experts = scores.shape[1]
    lanes, slots = triton.next_power_of_2(experts), triton.next_power_of_2(top_k)
    choose_experts[(tokens,)](scores, weights, ids, experts, TOP_K=top_k, SLOTS=slots, LANES=lanes, num_warps=1, **launch)
