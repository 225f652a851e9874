"""The MoE layer in plain torch: the float64 oracle, a float32 twin, and one that rounds where real kernels round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from perfgate_moe.layer.problem import MICRO_BLOCK, SCALE_BLOCK, BlockScales, MicroScales

if TYPE_CHECKING:
    from perfgate_moe.layer.problem import Activation, Problem

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0
# The 16 values of e2m1: sign, two bits of exponent, one of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E8M0_BIAS = 127
SMALLEST_PEAK = 1e-10  # SGLang's: an all-zero group gets a scale, not a division by zero


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


def round_rows(rows: Tensor) -> Tensor:
    """Rows [n, K] as 8-bit floats carry them: each group of 128 columns scaled by its largest magnitude / 448, in float32.

    The value of the 8-bit float times its scale comes back, in the dtype of `rows`.
    """
    groups = split_groups(rows.float())
    scales = groups.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_PEAK) / FLOAT8_MAX
    codes = (groups / scales).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8)
    return (codes.to(rows.dtype) * scales.to(rows.dtype)).flatten(1)[:, : rows.shape[1]]


def split_groups(rows: Tensor) -> Tensor:
    """Rows [n, K] as [n, groups, 128], zeros past K."""
    missing = -rows.shape[1] % SCALE_BLOCK
    return torch.nn.functional.pad(rows, (0, missing)).unflatten(1, (-1, SCALE_BLOCK))


def scale_blocks(weight: Tensor, scales: Tensor) -> Tensor:
    """A weight [N, K] times the scales [ceil(N / 128), ceil(K / 128)] of its blocks."""
    spread = scales.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
    return weight * spread[: weight.shape[0], : weight.shape[1]].to(weight.dtype)


def unpack_pairs(pairs: Tensor) -> Tensor:
    """4-bit codes [N, K] as int64 from pairs [N, K / 2]: the earlier column lies in the low half."""
    return torch.stack([pairs & 0xF, pairs >> 4], dim=-1).flatten(-2).long()


def decode(codes: Tensor) -> Tensor:
    """The values of 4-bit codes, float32."""
    return torch.tensor(E2M1, device=codes.device)[codes]


def scale_micro(values: Tensor, scales: Tensor) -> Tensor:
    """Values [N, K] times 2^(s - 127) for the scales s [N, K / 32] of their blocks; exact."""
    powers = torch.exp2(scales.to(values.dtype) - E8M0_BIAS)
    return values * powers.repeat_interleave(MICRO_BLOCK, 1)


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
    round_rows: Callable[[Tensor], Tensor] = round_rows
    scale_blocks: Callable[[Tensor, Tensor], Tensor] = scale_blocks
    unpack_pairs: Callable[[Tensor], Tensor] = unpack_pairs
    decode: Callable[[Tensor], Tensor] = decode
    scale_micro: Callable[[Tensor, Tensor], Tensor] = scale_micro


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

    gate_up_weight, down_weight = _weights(problem, expert, rows.dtype, steps)
    is_rounded = isinstance(problem.scales, BlockScales)
    if is_rounded:
        rows = steps.round_rows(rows)
    if problem.weight_on_input:
        rows, weights = steps.weigh(rows, weights), weights.new_ones(weights.shape)
    gate_up = steps.gate_up(rows, gate_up_weight, pick(problem.gate_up_bias))
    inner = steps.store(steps.activate(gate_up, problem.activation))
    if is_rounded:
        inner = steps.round_rows(inner.to(problem.hidden.dtype).to(rows.dtype))
    outer = steps.down(inner, down_weight, pick(problem.down_bias))
    return steps.store(steps.weigh(outer, weights * problem.routed_scaling))


def _weights(problem: Problem, expert: int, dtype: torch.dtype, steps: Steps) -> tuple[Tensor, Tensor]:
    """One expert's weights [2I, H] and [H, I] as numbers."""
    scales = problem.scales
    if scales is None:
        return problem.gate_up[expert].to(dtype), problem.down[expert].to(dtype)
    pairs = ((problem.gate_up[expert], scales.gate_up[expert]), (problem.down[expert], scales.down[expert]))
    if isinstance(scales, MicroScales):
        first, second = (steps.scale_micro(steps.decode(steps.unpack_pairs(codes)).to(dtype), scale) for codes, scale in pairs)
    else:
        first, second = (steps.scale_blocks(codes.to(dtype), scale) for codes, scale in pairs)
    return first, second


def oracle(problem: Problem) -> Tensor:
    """The answer in float64 [M, H]: no rounding besides that of the inputs themselves.

    A quantised layer's activations are rounded as its recipe says; that is part of the question.
    """
    return layer(problem, torch.float64)


def float32(problem: Problem) -> Tensor:
    """The layer in float32, rounded once at the end; an implementation like any other."""
    return cast(problem, layer(problem, torch.float32))


def staged(problem: Problem) -> Tensor:
    """The layer with float32 sums that rounds stored intermediates to the layer's dtype, as separate kernels do."""

    def store(tensor: Tensor) -> Tensor:
        return tensor.to(problem.hidden.dtype).to(torch.float32)

    return cast(problem, layer(problem, torch.float32, Steps(store=store)))
