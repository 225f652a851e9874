"""Our layer of 8-bit weights, whose second product walks wherever it can: an exam asks of it what two tuned cells alone use.

perfgate kernels check --impl benchmarks.kernels.walking:layer --matrix exam --device cuda
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.fused import fused_moe
from perfgate_moe.layer.problem import BlockScales, Problem
from perfgate_moe.layer.tiles import TilePlan, Tiles, Variant

if TYPE_CHECKING:
    from torch import Tensor

TILES = Tiles(m=64, n=128, k=128, stages=3)
PLAN = TilePlan(variant=Variant.SLOTS, gate_up=TILES, down=replace(TILES, stages=2, walk=14))
"""The plan tuned for a rank of DeepSeek-V3 with 4,096 tokens on an H200, but for the first product's groups."""


def layer(problem: Problem) -> Tensor:
    """The layer's answer; NotApplicableError without block scales, and where rows are too wide to be kept."""
    if not isinstance(problem.scales, BlockScales):
        raise NotApplicableError("only 8-bit weights are walked over")
    return fused_moe(problem, PLAN)
