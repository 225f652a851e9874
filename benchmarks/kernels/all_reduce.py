"""A MoE layer cut over two GPUs, with the all-reduce behind it: ours and SGLang's, before the sums that SGLang may choose from.

    python -m benchmarks.kernels.all_reduce --plans benchmarks/h200/kernels/gpt-oss-20b.json --tokens 1 16 64 --json OUT.json

Each rank has a share of every expert's width, half or what `--parts` says, and the tiles that a search found for the whole
layer. A graph runs eight layers, each with its sum: `nothing`, NCCL's, SGLang's own, SGLang's own with its kernel for residual
and RMS norm behind it, or FlashInfer's, which does all three in one and compiles at first use. Both ranks' samples and errors
are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.reference import oracle
from perfgate_moe.layer.tiles import plan_from
from perfgate_moe.timing.shapes import FEW_SETS, LAYERS, SHAPES, problems
from perfgate_moe.timing.survey import describe_device
from perfgate_moe.timing.timing import LayerFunction, count_replays, interleave, ratio_interval
from perfgate_moe.timing.tuner import runner

RANKS = 2
ROUNDS = 30
NORM_EPS = 1e-5
LIMIT = TOLERANCES["bfloat16"]
# A norm rounds twice more, its own sum and its answer, each by 2**-9 / 3**0.5 of the norm on average.
NORM_LIMIT = replace(LIMIT, relative=4.5e-3, angle=1.02e-5)
MAX_TOKENS = 2048  # SGLang's default for FlashInfer's workspace
LAYER_NAMES = ("sglang", "ours-slots")
Sum = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """This process among the others, with SGLang's communicator of them."""

    number: int
    group: Any
    communicator: Any

    def agree(self, value: Any) -> Any:
        """The first rank's value."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Each rank's value."""
        values: list[Any] = [None] * RANKS
        dist.all_gather_object(values, value, group=self.group)
        return values


@contextmanager
def join(number: int, port: int) -> Iterator[Rank]:
    """Meet the other ranks, as servers of SGLang do; its check of memory of peers asks its group of the world."""
    from sglang.srt.distributed.device_communicators.custom_all_reduce import dispatch_custom_allreduce
    from sglang.srt.distributed.parallel_state import get_world_group, init_distributed_environment

    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    init_distributed_environment(
        world_size=RANKS, rank=number, local_rank=number, distributed_init_method=f"tcp://127.0.0.1:{port}", backend="nccl"
    )
    group = get_world_group().cpu_group
    communicator = dispatch_custom_allreduce(group=group, device=device)(group=group, device=device)
    try:
        yield Rank(number=number, group=group, communicator=communicator)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What follows a layer: `run` gives the sum [M, H], or the norm of it and of `residual`, to which it is added."""

    run: Sum
    is_summed: bool = True
    residual: Tensor | None = None


def list_sums(rank: Rank, tokens: int, width: int, fused: Callable[..., Any] | None) -> dict[str, Behind]:
    """What may follow a layer here, by name."""
    from sgl_kernel import fused_add_rmsnorm

    gain = torch.ones(width, dtype=torch.bfloat16, device="cuda")
    residual = torch.zeros(tokens, width, dtype=torch.bfloat16, device="cuda")

    def nccl(part: Tensor) -> Tensor:
        dist.all_reduce(part)
        return part

    def own(part: Tensor) -> Tensor:
        total: Tensor = rank.communicator.custom_all_reduce(part)
        return total

    def own_normed(part: Tensor) -> Tensor:
        total = own(part)
        fused_add_rmsnorm(total, residual, gain, NORM_EPS)
        return total

    found = {
        "nothing": Behind(run=lambda part: part, is_summed=False),
        "nccl": Behind(run=nccl),
        "sglang": Behind(run=own),
        "sglang, norm": Behind(run=own_normed, residual=residual),
    }
    if fused is not None:

        def one_kernel(part: Tensor) -> Tensor:
            normed = torch.empty_like(part)
            fused(part, residual, normed, gain)
            return normed

        found["flashinfer, norm"] = Behind(run=one_kernel, residual=residual)
    return found


def find_fused(rank: Rank, width: int) -> Callable[..., None]:
    """FlashInfer's sum with residual and RMS norm in one kernel, over peers' memory; compiled here where no cache has it."""
    from flashinfer.comm import trtllm_ar

    peers, workspace = trtllm_ar.trtllm_create_ipc_workspace_for_all_reduce_fusion(
        rank.number, RANKS, MAX_TOKENS, width, group=dist.group.WORLD
    )

    def run(part: Tensor, residual: Tensor, normed: Tensor, gain: Tensor, *, _kept: Any = peers) -> None:
        trtllm_ar.trtllm_allreduce_fusion(
            allreduce_in=part, world_size=RANKS, world_rank=rank.number, token_num=part.shape[0], hidden_dim=part.shape[1],
            workspace_ptrs=workspace, launch_with_pdl=True, trigger_completion_at_end=False, fp32_acc=False,
            pattern_code=trtllm_ar.AllReduceFusionPattern.kARResidualRMSNorm, use_oneshot=None, allreduce_out=None,
            residual_in=residual, residual_out=residual, norm_out=normed, quant_out=None, scale_out=None, rms_gamma=gain,
            rms_eps=NORM_EPS, scale_factor=None, layout_code=None,
        )  # fmt: skip

    return run


def chain(layer: LayerFunction | None, behind: Behind, problem: Problem) -> Tensor:
    """One layer and what follows it; without a layer, the sum of what lies in its output."""
    return behind.run(problem.out if layer is None else layer(problem))


def check(run: LayerFunction, behind: Behind, problem: Problem, total: Tensor) -> dict[str, Any]:
    """Distances of a first answer from the float64 sum over the ranks, or from the norm of it."""
    wanted, limit = total, LIMIT
    if behind.residual is not None:
        limit = NORM_LIMIT
        behind.residual.zero_()
        wanted = total / (total.square().mean(dim=1, keepdim=True) + NORM_EPS).sqrt()
    errors = measure(run(problem), wanted)
    return {"relative": errors.relative, "problems": limit.violations(errors)}


def capture(run: LayerFunction, layers: Sequence[Problem], communicator: Any | None) -> torch.cuda.CUDAGraph:
    """A graph of the layers; NCCL's watchdog may ask for its events meanwhile, and SGLang registers what its sum reads."""
    for problem in layers[:2]:
        run(problem)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    registered: AbstractContextManager[Any] = nullcontext() if communicator is None else communicator.capture()
    with registered, torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for problem in layers:
            run(problem)
    return graph


def cell(rank: Rank, layers: Sequence[Problem], plans: dict[str, Any], fused: Callable[..., None] | None) -> dict[str, Any]:
    """Check and time every pair of a layer and what follows it on these problems."""
    tokens, width = layers[0].hidden.shape
    total = oracle(layers[0])
    dist.all_reduce(total)
    sides: dict[str, LayerFunction | None] = {name: runner(name, plan_from(plans[name])) for name in LAYER_NAMES}
    graphs, errors = {}, {}
    for follows, behind in list_sums(rank, tokens, width, fused).items():
        for side, layer in {**sides, **({"no layer": None} if behind.is_summed else {})}.items():
            name, run = f"{side} + {follows}", partial(chain, layer, behind)
            if layer is None:
                for problem in layers:
                    problem.out.zero_()
            elif behind.is_summed:
                errors[name] = check(run, behind, layers[0], total)
            graphs[name] = capture(run, layers, rank.communicator if follows.startswith("sglang") else None)
    replays = rank.agree({name: count_replays(graph) for name, graph in graphs.items()})
    dist.barrier()
    samples = interleave(graphs, LAYERS, ROUNDS, seed=layers[0].tokens, replays=replays)
    ours = {name: name.replace("ours-slots", "sglang", 1) for name in samples if name.startswith("ours-slots")}
    ratios = {name: ratio_interval(samples[peer], samples[name]) for name, peer in ours.items()}
    return {
        "tokens": layers[0].tokens, "errors": rank.gather(errors), "samples_us": rank.gather(samples),
        "sglang_over_ours": rank.gather(ratios), "with_fused": fused is not None,
    }  # fmt: skip


def draw_weights(part: LayerCase, number: int) -> list[Problem]:
    """Sets of weights of a rank's own; the bias of the sum is added once."""
    weights = [build(replace(part, seed=seed + 100 * number), "cuda") for seed in range(FEW_SETS)]
    if number:
        for one in weights:
            if one.down_bias is not None:
                one.down_bias.zero_()
    return weights


def show(result: dict[str, Any]) -> None:
    """The medians of the first rank, fastest first."""
    medians = {name: sorted(values)[len(values) // 2] for name, values in result["samples_us"][0].items()}
    print(f"M={result['tokens']}, I/{result['parts']}{', FlashInfer with it' if result['with_fused'] else ''}")
    for name, value in sorted(medians.items(), key=lambda pair: pair[1]):
        ratio = result["sglang_over_ours"][0].get(name)
        told = f"SGLang over ours x{ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]" if ratio else ""
        error = result["errors"][0].get(name, {}).get("relative")
        print(f"   {name:32} {value:8.1f} us  {told}{f'  relative error {error:.1e}' if error else ''}")
    for name, found in result["errors"][0].items():
        if found["problems"]:
            print(f"   {name:32} BEYOND THE LIMITS: {'; '.join(found['problems'])}")
    sys.stdout.flush()


def work(number: int, options: argparse.Namespace) -> None:
    """What each rank does."""
    begun = time.perf_counter()
    tuned = {one["tokens"]: one["plans"] for one in json.loads(options.plans.read_text(encoding="utf-8"))["cells"]}
    with join(number, options.port) as rank:
        cells: list[dict[str, Any]] = []
        kept = {
            **describe_device(), "argv": sys.argv[1:], "communicator": type(rank.communicator).__name__,
            "multicast": getattr(getattr(rank.communicator, "config", None), "num_mc_blocks", None), "cells": cells,
        }  # fmt: skip
        for parts, with_fused in product(options.parts, (False, True) if options.flashinfer else (False,)):
            fused = find_fused(rank, SHAPES[options.shape].H) if with_fused else None
            part = replace(SHAPES[options.shape], I=SHAPES[options.shape].I // parts, M=16)
            weights = draw_weights(part, number)
            for tokens in options.tokens:
                layers = problems(part, tokens, weights)
                found = {"shape": options.shape, "parts": parts, **cell(rank, layers, tuned[tokens], fused)}
                if number == 0:
                    cells.append(found)
                    show(found)
                    print(f"   after {time.perf_counter() - begun:.0f} s", flush=True)
                    options.json.write_text(json.dumps(kept), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="gpt-oss-20b")
    parser.add_argument("--plans", type=Path, required=True, help="a JSON file of layer.py, whose best tiles are taken")
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--parts", type=int, nargs="+", default=[RANKS], help="a rank has one of so many parts of the width")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--port", type=int, default=29555)
    parser.add_argument("--flashinfer", action="store_true", help="time every cell once more, with FlashInfer's sum among them")
    options = parser.parse_args()
    if torch.cuda.device_count() < RANKS:
        print(f"all_reduce.py: {torch.cuda.device_count()} CUDA devices here, {RANKS} are asked for", file=sys.stderr)
        return 2
    torch.multiprocessing.spawn(work, args=(options,), nprocs=RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
