"""Choose experts by scores; sort slots by expert on the device, in whole blocks, without atomics: always the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from perfgate_moe.layer.programs import begin

CHUNK = 1024
SEGMENT = 4096
ONE_LAUNCH_SLOTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment:
    """Blocks of `block_m` rows, each of one expert.

    `slots` [blocks * block_m] holds slot numbers (token * k + position), or M * k for padding; `experts` [blocks] the expert
    of each block; `count` [1] how many blocks are in use. Entries past `count` are undefined.
    """

    slots: Tensor
    experts: Tensor
    count: Tensor

    @property
    def blocks(self) -> int:
        """The most blocks that any routing of this many slots can need."""
        return int(self.experts.shape[0])


def most_blocks(slots: int, experts: int, block_m: int) -> int:
    """Upper bound of sum over experts of ceil(count / block_m), reached when every expert has one slot too many."""
    active = min(slots, experts)
    return (slots + active * (block_m - 1)) // block_m


def align(topk_ids: Tensor, experts: int, block_m: int, launch: Mapping[str, bool]) -> Alignment:
    """Sort the slots of topk_ids [M, k] by expert; slots with id -1 take part nowhere. `launch` is `launch_mode`'s answer."""
    slots = topk_ids.numel()
    blocks = most_blocks(slots, experts, block_m)
    made = Alignment(
        slots=torch.empty(blocks * block_m, dtype=torch.int32, device=topk_ids.device),
        experts=torch.empty(blocks, dtype=torch.int32, device=topk_ids.device),
        count=torch.empty(1, dtype=torch.int32, device=topk_ids.device),
    )
    segments = 1 if slots <= ONE_LAUNCH_SLOTS else triton.cdiv(slots, SEGMENT)
    padded = triton.next_power_of_2(experts)
    counts = made.count  # unused when one program counts everything itself
    if segments > 1:
        counts = torch.empty((segments, experts), dtype=torch.int32, device=topk_ids.device)
        count_slots[(experts, segments)](topk_ids, counts, slots, SEGMENT=SEGMENT, CHUNK=CHUNK, num_warps=4, **launch)
    place_slots[(experts, segments)](
        topk_ids, counts, made.slots, made.experts, made.count, slots, experts, segments,
        EXPERTS=padded, SEGMENTS=triton.next_power_of_2(segments), SEGMENT=SEGMENT, CHUNK=CHUNK, BLOCK_M=block_m,
        COUNTED=segments > 1, num_warps=4, **launch,
    )  # fmt: skip
    return made


@triton.jit
def count_slots(
    topk_ids: tl.tensor,
    counts: tl.tensor,
    slots: tl.tensor,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Count how often one expert occurs in one segment of the slots."""
    begin(OVERLAP)
    expert = tl.program_id(0)
    segment = tl.program_id(1)
    lanes = tl.arange(0, CHUNK)
    found = tl.zeros([CHUNK], dtype=tl.int32)
    for start in range(segment * SEGMENT, min(slots, (segment + 1) * SEGMENT), CHUNK):
        ids = tl.load(topk_ids + start + lanes, mask=start + lanes < slots, other=-1)
        found += (ids == expert).to(tl.int32)
    tl.store(counts + segment * tl.num_programs(0) + expert, tl.sum(found, axis=0))


@triton.jit
def place_slots(
    topk_ids: tl.tensor,
    counts: tl.tensor,
    sorted_slots: tl.tensor,
    block_experts: tl.tensor,
    block_count: tl.tensor,
    slots: tl.tensor,
    experts: tl.tensor,
    segments: tl.tensor,
    EXPERTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    COUNTED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """Write one expert's slots of one segment to their places, in slot order; the last segment also pads and names blocks."""
    begin(OVERLAP)
    expert = tl.program_id(0)
    segment = tl.program_id(1)
    lanes = tl.arange(0, CHUNK)
    every = tl.arange(0, EXPERTS)
    if COUNTED:
        rows = tl.arange(0, SEGMENTS)
        table_mask = (rows[:, None] < segments) & (every[None, :] < experts)
        table = tl.load(counts + rows[:, None] * experts + every[None, :], mask=table_mask, other=0)
        per_expert = tl.sum(table, axis=0)
        earlier = tl.sum(tl.where((rows[:, None] < segment) & (every[None, :] == expert), table, 0))
        first, last = segment * SEGMENT, min(slots, (segment + 1) * SEGMENT)
    else:
        per_expert = tl.zeros([EXPERTS], dtype=tl.int32)
        for start in range(0, slots, CHUNK):
            ids = tl.load(topk_ids + start + lanes, mask=start + lanes < slots, other=-1)
            per_expert += tl.histogram(tl.where(ids < 0, 0, ids), EXPERTS, mask=ids >= 0)
        earlier = tl.sum(tl.zeros([CHUNK], dtype=tl.int32))
        first, last = 0, slots
    blocks = (per_expert + BLOCK_M - 1) // BLOCK_M
    first_block = tl.sum(tl.where(every < expert, blocks, 0))
    my_blocks = tl.sum(tl.where(every == expert, blocks, 0))
    my_slots = tl.sum(tl.where(every == expert, per_expert, 0))
    place = first_block * BLOCK_M + earlier
    for start in range(first, last, CHUNK):
        inside = start + lanes < last
        mine = (tl.load(topk_ids + start + lanes, mask=inside, other=-1) == expert).to(tl.int32)
        rank = tl.cumsum(mine, axis=0) - mine
        tl.store(sorted_slots + place + rank, start + lanes, mask=mine != 0)
        place += tl.sum(mine, axis=0)
    if segment == segments - 1:
        pad = tl.arange(0, BLOCK_M)
        pad_mask = my_slots + pad < my_blocks * BLOCK_M
        tl.store(sorted_slots + first_block * BLOCK_M + my_slots + pad, slots + pad * 0, mask=pad_mask)
        for start in range(0, my_blocks, CHUNK):
            tl.store(block_experts + first_block + start + lanes, expert + lanes * 0, mask=start + lanes < my_blocks)
        if expert == 0:
            tl.store(block_count, tl.sum(blocks))


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


def choose_by_score(scores: Tensor, weights: Tensor, ids: Tensor, launch: dict[str, bool]) -> None:
    """Fill `weights` float32 and `ids` int32, both [M, k], from a router's `scores` [M, E]: softmax over the k highest."""
    tokens, top_k = ids.shape
    experts = scores.shape[1]
    lanes, slots = triton.next_power_of_2(experts), triton.next_power_of_2(top_k)
    choose_experts[(tokens,)](scores, weights, ids, experts, TOP_K=top_k, SLOTS=slots, LANES=lanes, num_warps=1, **launch)
