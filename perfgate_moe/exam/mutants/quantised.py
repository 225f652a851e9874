"""Wrong scales: of weights in blocks, and of activations in groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from perfgate_moe.exam.mutants.registry import mutant_of, run_with
from perfgate_moe.layer import reference
from perfgate_moe.layer.problem import SCALE_BLOCK, BlockScales, Problem
from perfgate_moe.layer.reference import FLOAT8, FLOAT8_MAX, SMALLEST_PEAK

fp8 = mutant_of("fp8")


def _with_scales(problem: Problem, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The layer with the scales of both weights changed."""
    if problem.scales is None:
        return reference.staged(problem)
    gate_up, down = (change(scales).contiguous() for scales in (problem.scales.gate_up, problem.scales.down))
    return reference.staged(replace(problem, scales=BlockScales(gate_up=gate_up, down=down)))


def _peaks(groups: Tensor) -> Tensor:
    return groups.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_PEAK)


def _round_with(rows: Tensor, scales: Tensor, returned: Tensor, limit: float = FLOAT8_MAX) -> Tensor:
    """Rows rounded with one set of scales [n, groups, 1] and given back with another."""
    codes = (reference.split_groups(rows) / scales).clamp(-limit, limit).to(FLOAT8)
    return (codes.float() * returned).flatten(1)[:, : rows.shape[1]]


@fp8
def no_weight_scales(problem: Problem) -> Tensor:
    """Weights are taken for their codes."""
    return _with_scales(problem, torch.ones_like)


@fp8
def inverse_weight_scales(problem: Problem) -> Tensor:
    """Codes are divided by their scales."""
    return _with_scales(problem, torch.reciprocal)


@fp8
def neighbours_scales_along_rows(problem: Problem) -> Tensor:
    """Each block takes the scale of the block above."""
    return _with_scales(problem, lambda scales: scales.roll(1, dims=1))


@fp8
def neighbours_scales_along_columns(problem: Problem) -> Tensor:
    """Each block takes the scale of the block before."""
    return _with_scales(problem, lambda scales: scales.roll(1, dims=2))


@fp8
def swapped_scale_axes(problem: Problem) -> Tensor:
    """Scales are read with rows and columns exchanged."""
    return _with_scales(problem, lambda scales: scales.reshape(scales.shape[0], scales.shape[2], scales.shape[1]).mT)


@fp8
def first_experts_scales(problem: Problem) -> Tensor:
    """All experts take the scales of the first."""
    return _with_scales(problem, lambda scales: scales[:1].expand_as(scales))


@fp8
def one_scale_for_all_columns(problem: Problem) -> Tensor:
    """A product is scaled once at its end, by the scale of the last block."""
    return _with_scales(problem, lambda scales: scales[:, :, -1:].expand_as(scales))


@fp8
def gates_scales_for_ups(problem: Problem) -> Tensor:
    """Rows of up take the scales of the rows of gate in the same place."""
    if problem.scales is None or problem.activation.interleaved:
        return reference.staged(problem)
    half = problem.scales.gate_up.shape[1] // 2
    both = torch.cat([problem.scales.gate_up[:, :half]] * 2 + [problem.scales.gate_up[:, 2 * half :]], dim=1)
    return reference.staged(replace(problem, scales=replace(problem.scales, gate_up=both)))


@fp8
def unscaled_weight_tail(problem: Problem) -> Tensor:
    """Columns past the last whole block are not scaled."""

    def scale_blocks(weight: Tensor, scales: Tensor) -> Tensor:
        whole = weight.shape[1] // SCALE_BLOCK * SCALE_BLOCK
        return torch.cat([reference.scale_blocks(weight, scales)[:, :whole], weight[:, whole:]], dim=1)

    return run_with(problem, scale_blocks=scale_blocks)


@fp8
def no_activation_scales(problem: Problem) -> Tensor:
    """Activations are rounded with scales that are never given back."""

    def round_rows(rows: Tensor) -> Tensor:
        scales = _peaks(reference.split_groups(rows)) / FLOAT8_MAX
        return _round_with(rows, scales, torch.ones_like(scales))

    return run_with(problem, round_rows=round_rows)


@fp8
def first_groups_activation_scale(problem: Problem) -> Tensor:
    """Groups are rounded with their own scales and given back with that of the first."""

    def round_rows(rows: Tensor) -> Tensor:
        scales = _peaks(reference.split_groups(rows)) / FLOAT8_MAX
        return _round_with(rows, scales, scales[:, :1])

    return run_with(problem, round_rows=round_rows)


@fp8
def one_activation_scale_for_a_token(problem: Problem) -> Tensor:
    """A token has one scale instead of one for each group."""

    def round_rows(rows: Tensor) -> Tensor:
        scales = _peaks(reference.split_groups(rows)).amax(dim=1, keepdim=True) / FLOAT8_MAX
        return _round_with(rows, scales, scales)

    return run_with(problem, round_rows=round_rows)


@fp8
def early_saturation(problem: Problem) -> Tensor:
    """Codes are cut off at 240, the limit of another 8-bit format."""

    def round_rows(rows: Tensor) -> Tensor:
        scales = _peaks(reference.split_groups(rows)) / FLOAT8_MAX
        return _round_with(rows, scales, scales, limit=240.0)

    return run_with(problem, round_rows=round_rows)


@fp8
def unrounded_activations(problem: Problem) -> Tensor:
    """Activations are not rounded to 8 bits at all: more exact, and another layer than the one that was trained for."""
    return run_with(problem, round_rows=lambda rows: rows)
