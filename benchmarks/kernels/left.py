"""A layer of 4-bit weights that lies in bricks alone and is left to SGLang: its bits and its time, in a CUDA graph as well.

python benchmarks/kernels/left.py --shape gpt-oss-20b-mxfp4 --tokens 1 16 256 --out OUT.json

Weights are loaded by SGLang's own function, and by the plug-in's in its place, which keeps bricks. What SGLang's runner answers
with the weights that are made of bricks for each call is held against its answer with its own; both are timed by turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from sglang.srt.layers.quantization import mxfp4

from perfgate_moe.engines.counters import Counters
from perfgate_moe.engines.micro_swap import MicroSwap, make_weights
from perfgate_moe.engines.sglang_mxfp4_peer import Loaded, layer, load, route_ahead
from perfgate_moe.engines.swap import ServerState
from perfgate_moe.layer.problem import Problem
from perfgate_moe.timing.shapes import LAYERS, SHAPES, problems, weight_sets
from perfgate_moe.timing.timing import LayerFunction, capture, interleave

ROUNDS = 10


def load_bricks(sets: Sequence[Problem]) -> list[Loaded]:
    """The layers as a server with `slots` holds them: bricks, and what stands for SGLang's weights."""
    counters = Counters(mode="slots", versions={})
    swap = MicroSwap(mode="slots", counters=counters, server=ServerState, promised=ServerState, tables=(), output=dict)
    original = mxfp4._swizzle_mxfp4  # noqa: SLF001 - what the plug-in hooks
    with mock.patch.object(mxfp4, "_swizzle_mxfp4", partial(swap.lay_out, original)):
        return [load(each) for each in sets]


def run_left(problem: Problem) -> torch.Tensor:
    """SGLang's layer with weights that are made of bricks for this call."""
    loaded = load(problem)
    made = {name: make_weights(getattr(loaded, name)) for name in ("gate_up_product", "down_product")}
    return layer(replace(loaded, **made))


def answer_in_graph(run: LayerFunction, asked: Sequence[Problem]) -> list[torch.Tensor]:
    """What a replayed graph of all calls answers."""
    answers: list[torch.Tensor] = []

    def keep(problem: Problem) -> torch.Tensor:
        answers.append(run(problem))
        return answers[-1]

    graph = capture(keep, asked)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    return [each.clone() for each in answers[-len(asked) :]]


def ask(tokens: int, shape: str, own: Sequence[Problem], bricks: Sequence[Problem]) -> dict[str, object]:
    """Whether bits are equal, called and in a graph, and both layers' times in graphs, in microseconds."""
    held = [route_ahead(each) for each in problems(SHAPES[shape], tokens, own)]
    left = [
        replace(load(each), routing=routed.routing)
        for each, routed in zip(problems(SHAPES[shape], tokens, bricks), held, strict=True)
    ]
    want = [layer(each).clone() for each in held]
    answers = {"called": [run_left(each) for each in left], "in_graph": answer_in_graph(run_left, left)}
    equal = {name: sum(map(torch.equal, found, want)) for name, found in answers.items()}
    free_before = torch.cuda.mem_get_info()[0]
    graphs = {"own": capture(layer, held), "own-again": capture(layer, held)}
    free_between = torch.cuda.mem_get_info()[0]
    graphs["left"] = capture(run_left, left)
    free_after = torch.cuda.mem_get_info()[0]
    samples = interleave(graphs, LAYERS, ROUNDS, seed=tokens)
    return {
        "tokens": tokens, "layers": LAYERS, "equal_bits": equal, "samples_us": samples,
        "graph_bytes": {"own": (free_before - free_between) // 2, "left": free_between - free_after},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[name for name, shape in SHAPES.items() if shape.quant == "mxfp4"], required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sets = weight_sets(SHAPES[options.shape], "cuda")
    own, bricks = [load(each) for each in sets], load_bricks(sets)
    found = [ask(tokens, options.shape, own, bricks) for tokens in options.tokens]
    for one in found:
        print(one)
    head = {"shape": options.shape, "torch": torch.__version__, "card": torch.cuda.get_device_name(), "asked": found}
    options.out.write_text(json.dumps(head) + "\n")


if __name__ == "__main__":
    main()
