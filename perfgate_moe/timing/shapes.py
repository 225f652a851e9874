"""Layers of real models to time: their sizes, several sets of weights, and problems that walk through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from perfgate_moe.errors import MoeInputError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build, draw_ids, draw_weights
from perfgate_moe.layer.problem import Problem

Draw = Callable[[LayerCase, int, torch.Generator], torch.Tensor]

# One layer of the model, or one rank's shard of it.
SHAPES = MappingProxyType(
    {
        "gpt-oss-20b": LayerCase(E=32, k=4, H=2880, I=2880, dtype="bfloat16"),
        "qwen3-30b": LayerCase(E=128, k=8, H=2048, I=768, dtype="bfloat16", activation="silu", bias="off"),
        "qwen3-235b-tp8": LayerCase(E=128, k=8, H=4096, I=192, dtype="bfloat16", activation="silu", bias="off"),
        "deepseek-v3-tp8": LayerCase(E=256, k=8, H=7168, I=256, dtype="bfloat16", activation="silu", bias="off", scaling=2.5),
        "narrow": LayerCase(E=128, k=8, H=2048, I=192, dtype="bfloat16", activation="silu", bias="off"),
        "deepseek-v3-tp8-fp8": LayerCase(
            E=256, k=8, H=7168, I=256, dtype="bfloat16", activation="silu", bias="off", scaling=2.5, quant="fp8"
        ),
        "gpt-oss-20b-mxfp4": LayerCase(E=32, k=4, H=2880, I=2880, dtype="bfloat16", quant="mxfp4"),
        "gpt-oss-120b-mxfp4": LayerCase(E=128, k=4, H=2880, I=2880, dtype="bfloat16", quant="mxfp4"),
    }
)
# The layers again without those that differ in their weights' format alone.
SIXTEEN_BIT_SHAPES = MappingProxyType({name: shape for name, shape in SHAPES.items() if shape.quant == "none"})
# What a pull request is asked where no layer is named: each format of weights, the widest, the narrowest, the most experts.
EXAM_SHAPES = ("gpt-oss-20b", "gpt-oss-20b-mxfp4", "qwen3-30b", "deepseek-v3-tp8", "deepseek-v3-tp8-fp8", "narrow")
LAYERS = 8
# As many sets of weights as make each layer's weights come from memory: the sets together exceed any cache.
FEW_SETS, MANY_SETS = 4, 8
LARGE_SET_BYTES = 1 << 30


def find_shape(text: str) -> LayerCase:
    """A named shape, or a case such as `E=8,k=2,H=64,I=64`. MoeInputError says which names there are."""
    if text in SHAPES:
        return SHAPES[text]
    if "=" in text:
        return LayerCase.parse(text)
    raise MoeInputError(f"shape {text!r}: choose one of {', '.join(SHAPES)}, or give E=..,k=..,H=..,I=..")


def weight_sets(shape: LayerCase, device: str) -> list[Problem]:
    """Layers of one shape, each with weights of its own."""
    set_bytes = 3 * shape.E * shape.I * shape.H * getattr(torch, shape.dtype).itemsize
    count = FEW_SETS if set_bytes > LARGE_SET_BYTES else MANY_SETS
    return [build(replace(shape, M=16, seed=seed), device) for seed in range(count)]


def draw_by_turns(
    case: LayerCase, index: int, source: torch.Generator, routings: Sequence[str] = ("uniform", "zipf")
) -> torch.Tensor:
    """Expert ids [M, k] of one of the layers, by one routing after the other."""
    return draw_ids(replace(case, routing=routings[index % len(routings)]), source)


def problems(shape: LayerCase, tokens: int, weights: Sequence[Problem], draw: Draw = draw_by_turns) -> list[Problem]:
    """LAYERS problems of `tokens` tokens over rotating weights; `draw` gives each its expert ids, by its index."""
    made = []
    for index in range(LAYERS):
        case = replace(shape, M=tokens, seed=100 + index)
        layer = weights[index % len(weights)]
        source = torch.Generator().manual_seed(case.seed)
        hidden = torch.randn(tokens, case.H, generator=source).to(layer.hidden)
        ids, router = draw(case, index, source), draw_weights(case, source)
        made.append(
            replace(
                layer,
                hidden=hidden,
                topk_ids=ids.to(hidden.device),
                topk_weights=router.to(hidden.device),
                out=torch.empty_like(hidden),
            )
        )
    return made
