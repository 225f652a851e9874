"""Lost, doubled and misdirected slots, and router weights applied wrongly."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from perfgate_moe.exam.mutants.registry import mutant
from perfgate_moe.layer import reference
from perfgate_moe.layer.problem import Problem

BLOCK = 16
FEW_SLOTS = 8


def _with_ids(problem: Problem, ids: Tensor) -> Tensor:
    return reference.staged(replace(problem, topk_ids=ids.to(torch.int32)))


@mutant
def dropped_first_expert(problem: Problem) -> Tensor:
    """Expert 0 is taken for a sentinel."""
    return _with_ids(problem, problem.topk_ids.masked_fill(problem.topk_ids == 0, -1))


@mutant
def dropped_last_expert(problem: Problem) -> Tensor:
    """The last expert's blocks are never launched."""
    return _with_ids(problem, problem.topk_ids.masked_fill(problem.topk_ids == problem.experts - 1, -1))


@mutant
def dropped_last_slot(problem: Problem) -> Tensor:
    """The combine adds k - 1 slots."""
    ids = problem.topk_ids.clone()
    ids[:, -1] = -1
    return _with_ids(problem, ids)


@mutant
def unweighted(problem: Problem) -> Tensor:
    """Router weights are ignored."""
    return reference.staged(replace(problem, topk_weights=torch.ones_like(problem.topk_weights)))


@mutant
def weighted_twice(problem: Problem) -> Tensor:
    """Router weights are applied by both products."""
    return reference.staged(replace(problem, topk_weights=problem.topk_weights.square()))


@mutant
def renormalized_again(problem: Problem) -> Tensor:
    """Router weights are made to sum to one although the caller did not ask for it."""
    total = problem.topk_weights.sum(dim=1, keepdim=True)
    return reference.staged(replace(problem, topk_weights=problem.topk_weights / total))


@mutant
def rounded_router_weights(problem: Problem) -> Tensor:
    """Router weights pass through bfloat16."""
    return reference.staged(replace(problem, topk_weights=problem.topk_weights.bfloat16().float()))


@mutant
def weight_on_wrong_side(problem: Problem) -> Tensor:
    """The option to weigh the input is ignored and the output weighed instead."""
    return reference.staged(replace(problem, weight_on_input=False))


@mutant
def scaling_omitted(problem: Problem) -> Tensor:
    """The routed scaling factor is never applied."""
    return reference.staged(replace(problem, routed_scaling=1.0))


@mutant
def scaling_twice(problem: Problem) -> Tensor:
    """The routed scaling factor is applied by the product and by the combine."""
    return reference.staged(replace(problem, routed_scaling=problem.routed_scaling**2))


@mutant
def double_add(problem: Problem) -> Tensor:
    """The first slot's result is added twice."""
    only_first = problem.topk_ids.clone()
    only_first[:, 1:] = -1
    return reference.staged(problem) + _with_ids(problem, only_first)


@mutant
def collapsed_duplicates(problem: Problem) -> Tensor:
    """A token that names one expert twice gets it once."""
    ids = problem.topk_ids.clone()
    for slot in range(1, problem.top_k):
        repeated = (ids[:, :slot] == ids[:, slot : slot + 1]).any(dim=1)
        ids[repeated, slot] = -1
    return _with_ids(problem, ids)


@mutant
def masked_as_first_expert(problem: Problem) -> Tensor:
    """Id -1 is clamped to expert 0."""
    return _with_ids(problem, problem.topk_ids.clamp(min=0))


@mutant
def masked_as_last_expert(problem: Problem) -> Tensor:
    """Id -1 indexes from the end."""
    return _with_ids(problem, problem.topk_ids % problem.experts)


@mutant
def masked_erases_token(problem: Problem) -> Tensor:
    """A masked slot writes zeros over its token's sum."""
    answer = reference.staged(problem)
    answer[(problem.topk_ids < 0).any(dim=1)] = 0
    return answer


@mutant
def dropped_partial_block(problem: Problem) -> Tensor:
    """An expert's last, partly filled block of 16 rows is not launched."""
    ids = problem.topk_ids.flatten().clone()
    for expert in range(problem.experts):
        slots = torch.nonzero(ids == expert).flatten()
        ids[slots[len(slots) // BLOCK * BLOCK :]] = -1
    return _with_ids(problem, ids.view_as(problem.topk_ids))


@mutant
def dropped_overflow_row(problem: Problem) -> Tensor:
    """The one row that an expert has beyond a whole block of 16 is lost."""
    ids = problem.topk_ids.flatten().clone()
    for expert in range(problem.experts):
        slots = torch.nonzero(ids == expert).flatten()
        if len(slots) % BLOCK == 1:
            ids[slots[-1:]] = -1
    return _with_ids(problem, ids.view_as(problem.topk_ids))


@mutant
def expert_ids_in_8_bits(problem: Problem) -> Tensor:
    """Expert ids are stored as signed 8-bit integers."""
    return _with_ids(problem, problem.topk_ids.to(torch.int8))


@mutant
def slots_in_16_bits(problem: Problem) -> Tensor:
    """The index of a slot is an unsigned 16-bit integer: what lies beyond is never launched."""
    ids = problem.topk_ids.flatten().clone()
    ids[1 << 16 :] = -1
    return _with_ids(problem, ids.view_as(problem.topk_ids))


@mutant
def at_most_eight_slots(problem: Problem) -> Tensor:
    """The combine is written out for eight slots, and a token has more."""
    ids = problem.topk_ids.clone()
    ids[:, FEW_SLOTS:] = -1
    return _with_ids(problem, ids)


@mutant
def capacity_of_twice_the_mean(problem: Problem) -> Tensor:
    """Scratch holds twice the mean number of slots for each expert, and what an expert has beyond is dropped."""
    ids = problem.topk_ids.flatten().clone()
    capacity = 2 * -(-ids.numel() // problem.experts)
    for expert in range(problem.experts):
        ids[torch.nonzero(ids == expert).flatten()[capacity:]] = -1
    return _with_ids(problem, ids.view_as(problem.topk_ids))


@mutant
def scaling_lost_on_input(problem: Problem) -> Tensor:
    """Where the input is weighed, the end of the second product is skipped whole, and the routed scaling factor with it."""
    return reference.staged(replace(problem, routed_scaling=1.0) if problem.weight_on_input else problem)


@mutant
def weighted_before_activation(problem: Problem) -> Tensor:
    """The router weight is applied before the activation instead of after the second product."""
    out = torch.zeros(problem.out.shape, device=problem.out.device)
    for expert in range(problem.experts):
        tokens, slots = torch.nonzero(problem.topk_ids == expert, as_tuple=True)
        biases = [None if bias is None else bias[expert].float() for bias in (problem.gate_up_bias, problem.down_bias)]
        rows = reference.project(problem.hidden[tokens].float(), problem.gate_up[expert].float(), biases[0])
        inner = reference.activate(reference.weigh(rows, problem.topk_weights[tokens, slots]), problem.activation)
        outer = reference.project(inner.to(problem.hidden.dtype).float(), problem.down[expert].float(), biases[1])
        reference.combine(out, tokens, outer * problem.routed_scaling)
    return reference.cast(problem, out)
