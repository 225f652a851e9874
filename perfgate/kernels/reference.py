"""The MoE layer in plain torch: the float64 oracle, a float32 twin, and one that rounds where real kernels round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from perfgate.kernels.problem import Activation, Problem


def route(logits: Tensor, top_k: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Softmax over experts, keep the best `top_k` per token; weights [M, k] float32 and ids [M, k] int32, best first.

    With `renormalize` the kept weights sum to one, which equals a softmax over the kept logits alone (gpt-oss).
    """
    weights, ids = torch.topk(torch.softmax(logits.float(), dim=-1), top_k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, ids.to(torch.int32)


def split_gate_up(rows: Tensor, *, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the gate and up halves of rows [n, 2I]."""
    if interleaved:
        return rows[:, 0::2], rows[:, 1::2]
    half = rows.shape[1] // 2
    return rows[:, :half], rows[:, half:]


def activate(rows: Tensor, activation: Activation) -> Tensor:
    """Intermediate rows [n, I] from gate_up rows [n, 2I], in the dtype of `rows`."""
    gate, up = split_gate_up(rows, interleaved=activation.interleaved)
    if activation.limit is not None:
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(min=-activation.limit, max=activation.limit)
    return gate * (gate * activation.alpha).sigmoid() * (up + activation.shift)


def project(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rows [n, K] times weight [N, K] transposed, plus bias [N]."""
    product = rows @ weight.T
    return product if bias is None else product + bias


def weigh(rows: Tensor, weights: Tensor) -> Tensor:
    """Expert outputs [n, H] times their router weights [n]."""
    return rows * weights[:, None]


def combine(out: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add rows [n, H] to the rows `tokens` [n] of `out`."""
    out.index_add_(0, tokens, rows)


def cast(problem: Problem, tokens: Tensor) -> Tensor:
    """The layer's answer in its own dtype."""
    return tokens.to(problem.hidden.dtype)


def keep(tensor: Tensor) -> Tensor:
    """Leave an intermediate value unrounded."""
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The layer as replaceable steps, so that a mutant is the reference with one step wrong."""

    gate_up: Callable[[Tensor, Tensor, Tensor | None], Tensor] = project
    activate: Callable[[Tensor, Activation], Tensor] = activate
    down: Callable[[Tensor, Tensor, Tensor | None], Tensor] = project
    weigh: Callable[[Tensor, Tensor], Tensor] = weigh
    combine: Callable[[Tensor, Tensor, Tensor], None] = combine
    store: Callable[[Tensor], Tensor] = keep


def layer(problem: Problem, accumulate: torch.dtype, steps: Steps | None = None) -> Tensor:
    """Run the layer expert by expert with every operation in `accumulate`; [M, H] in that dtype."""
    steps = steps or Steps()
    out = torch.zeros(problem.out.shape, dtype=accumulate, device=problem.hidden.device)
    for expert in range(problem.experts):
        tokens, slots = torch.nonzero(problem.topk_ids == expert, as_tuple=True)
        if len(tokens):
            weights = problem.topk_weights[tokens, slots].to(accumulate)
            rows = _expert_rows(problem, expert, problem.hidden[tokens].to(accumulate), weights, steps)
            steps.combine(out, tokens, rows)
    return out


def _expert_rows(problem: Problem, expert: int, rows: Tensor, weights: Tensor, steps: Steps) -> Tensor:
    """What one expert adds to its tokens, rows [n, H]."""

    def pick(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[expert].to(rows.dtype)

    if problem.weight_on_input:
        rows, weights = steps.weigh(rows, weights), weights.new_ones(weights.shape)
    gate_up = steps.gate_up(rows, problem.gate_up[expert].to(rows.dtype), pick(problem.gate_up_bias))
    inner = steps.store(steps.activate(gate_up, problem.activation))
    outer = steps.down(inner, problem.down[expert].to(rows.dtype), pick(problem.down_bias))
    return steps.store(steps.weigh(outer, weights * problem.routed_scaling))


def oracle(problem: Problem) -> Tensor:
    """The answer in float64 [M, H]: no rounding besides that of the inputs themselves."""
    return layer(problem, torch.float64)


def float32(problem: Problem) -> Tensor:
    """The layer in float32, rounded once at the end; an implementation like any other."""
    return cast(problem, layer(problem, torch.float32))


def staged(problem: Problem) -> Tensor:
    """The layer with float32 sums that rounds stored intermediates to the layer's dtype, as separate kernels do."""

    def store(tensor: Tensor) -> Tensor:
        return tensor.to(problem.hidden.dtype).to(torch.float32)

    return cast(problem, layer(problem, torch.float32, Steps(store=store)))
