"""Wrong readings of 4-bit weights and their scales."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from perfgate_moe.exam.mutants.registry import mutant_of, run_with
from perfgate_moe.layer import reference
from perfgate_moe.layer.problem import Problem

mxfp4 = mutant_of("mxfp4")


@mxfp4
def swapped_halves_of_a_byte(problem: Problem) -> Tensor:
    """The earlier column is read from the high half."""

    def unpack_pairs(pairs: Tensor) -> Tensor:
        return reference.unpack_pairs((pairs >> 4) | (pairs << 4))

    return run_with(problem, unpack_pairs=unpack_pairs)


@mxfp4
def halves_of_a_row(problem: Problem) -> Tensor:
    """Low halves are taken for the first half of a row and high ones for the second."""
    return run_with(problem, unpack_pairs=lambda pairs: torch.cat([pairs & 0xF, pairs >> 4], dim=-1).long())


@mxfp4
def lost_signs(problem: Problem) -> Tensor:
    """The sign bit is dropped."""
    return run_with(problem, decode=lambda codes: reference.decode(codes & 7))


@mxfp4
def codes_as_integers(problem: Problem) -> Tensor:
    """Codes are read as signed 4-bit integers, at the size of the format's largest value."""
    return run_with(problem, decode=lambda codes: torch.where(codes > 7, codes - 16, codes).float() * (6 / 7))


@mxfp4
def flushed_subnormals(problem: Problem) -> Tensor:
    """One half, the only subnormal, is taken for zero."""

    def decode(codes: Tensor) -> Tensor:
        return reference.decode(codes).masked_fill((codes & 7) == 1, 0.0)

    return run_with(problem, decode=decode)


@mxfp4
def largest_code_as_five(problem: Problem) -> Tensor:
    """The last entry of the table of values is wrong."""

    def decode(codes: Tensor) -> Tensor:
        values = reference.decode(codes)
        return torch.where(values.abs() > 5, values.sign() * 5, values)

    return run_with(problem, decode=decode)


@mxfp4
def no_micro_scales(problem: Problem) -> Tensor:
    """Scales are taken to be one."""
    return run_with(problem, scale_micro=lambda values, scales: values)  # noqa: ARG005 - that is the mistake


@mxfp4
def wrong_scale_bias(problem: Problem) -> Tensor:
    """Exponents are biased by 128."""
    return run_with(problem, scale_micro=lambda values, scales: reference.scale_micro(values, scales - 1))


@mxfp4
def neighbouring_micro_scales(problem: Problem) -> Tensor:
    """Each block takes the scale of the one before it in its row."""
    return run_with(problem, scale_micro=lambda values, scales: reference.scale_micro(values, scales.roll(1, dims=1)))


@mxfp4
def micro_scales_of_another_row(problem: Problem) -> Tensor:
    """Each row takes the scales of the row above."""
    return run_with(problem, scale_micro=lambda values, scales: reference.scale_micro(values, scales.roll(1, dims=0)))


@mxfp4
def micro_scales_of_the_first_expert(problem: Problem) -> Tensor:
    """All experts take the scales of the first."""
    if problem.scales is None:
        return reference.staged(problem)
    first = (scales[:1].expand_as(scales).contiguous() for scales in (problem.scales.gate_up, problem.scales.down))
    gate_up, down = first
    return reference.staged(replace(problem, scales=replace(problem.scales, gate_up=gate_up, down=down)))


@mxfp4
def micro_blocks_of_64(problem: Problem) -> Tensor:
    """A scale is taken to cover 64 columns."""

    def scale_micro(values: Tensor, scales: Tensor) -> Tensor:
        return reference.scale_micro(values, scales.repeat_interleave(2, 1)[:, : scales.shape[1]])

    return run_with(problem, scale_micro=scale_micro)
