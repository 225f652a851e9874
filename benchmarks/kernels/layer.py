"""Whole MoE layers on one GPU: ours against SGLang's, both tuned over one space. Writes one JSON file of raw samples.

python benchmarks/kernels/layer.py --shape gpt-oss-20b --tokens 1 4 16 64 256 1024 4096 --out OUT.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import search
import timing
import torch

from perfgate.kernels import fused, sglang_peer
from perfgate.kernels.accuracy import measure
from perfgate.kernels.cases import Case
from perfgate.kernels.data import _ids, _weights, build
from perfgate.kernels.problem import Problem
from perfgate.kernels.reference import oracle
from perfgate.kernels.tiles import Plan, Variant, plan_to

SHAPES = {
    "gpt-oss-20b": {"E": 32, "k": 4, "H": 2880, "I": 2880},
    "narrow": {"E": 128, "k": 8, "H": 2048, "I": 192, "activation": "silu", "bias": "off"},
}
WEIGHT_SETS = {"gpt-oss-20b": 4, "narrow": 8}
LAYERS = 8
ROUNDS = 30
SUBJECTS = ("ours-slots", "ours-atomic32", "ours-owner", "sglang", "sglang-fused-sum")
OWNER_TOKENS = 4
LARGEST = 128 * 256 * 4  # rows, columns and stages of the tile that wins most often: its row groups are compiled ahead too


def case_of(shape: str, tokens: int) -> Case:
    return Case(**SHAPES[shape], M=tokens, dtype="bfloat16")


def weight_sets(shape: str) -> list[Problem]:
    """Layers of the same shape with weights of their own."""
    return [build(replace(case_of(shape, 16), seed=seed), "cuda") for seed in range(WEIGHT_SETS[shape])]


def problems(shape: str, tokens: int, weights: list[Problem]) -> list[Problem]:
    """LAYERS problems over rotating weights; routings alternate between uniform and Zipf."""
    made = []
    for index in range(LAYERS):
        case = replace(case_of(shape, tokens), seed=100 + index, routing=("uniform", "zipf")[index % 2])
        source = torch.Generator().manual_seed(case.seed)
        hidden = torch.randn(tokens, case.H, generator=source).to(torch.bfloat16).cuda()
        ids, router = _ids(case, source).cuda(), _weights(case, source).cuda()
        layer = weights[index % len(weights)]
        made.append(replace(layer, hidden=hidden, topk_ids=ids, topk_weights=router, out=torch.empty_like(hidden)))
    return made


def runner(subject: str, plan: Plan | None) -> timing.Run:
    """The function that runs a subject with a plan."""
    if subject.startswith("sglang"):
        return partial(sglang_peer.fused_experts, is_sum_fused=subject.endswith("fused-sum"), plan=plan)
    return partial(fused.fused_moe, plan=plan)


def tune(subject: str, layers: list[Problem]) -> tuple[Plan, dict[str, float]]:
    """The best plan of a subject, and every time that was looked at."""
    seen: dict[str, float] = {}

    def seconds(plan: Plan) -> float:
        key = json.dumps(plan_to(plan))
        if key not in seen:
            seen[key] = timing.quick_us(runner(subject, plan), layers)
        return seen[key]

    rows = layers[0].topk_ids.numel() / min(layers[0].experts, layers[0].topk_ids.numel())
    tiles = search.space(rows)
    if subject == "ours-owner":
        return min(search.owner_plans(tiles), key=seconds), seen
    variant = Variant.ATOMIC32 if subject == "ours-atomic32" else Variant.SLOTS
    return search.tune(variant, tiles, seconds, is_ours=subject.startswith("ours")), seen


def floor_us(layers: list[Problem], bytes_per_s: float, flop_per_s: float) -> float:
    """Roofline of one layer, mean over the problems: each needed weight and activation once, each useful product once."""
    total = 0.0
    for problem in layers:
        active = int(problem.topk_ids.unique().numel())
        weights = active * 3 * problem.intermediate_size * problem.hidden_size * 2
        traffic = weights + 2 * problem.hidden.numel() * 2
        flop = 6 * problem.topk_ids.numel() * problem.intermediate_size * problem.hidden_size
        total += max(traffic / bytes_per_s, flop / flop_per_s)
    return total * 1e6 / len(layers)


def ceilings() -> dict[str, float]:
    """This card's copy bandwidth (read plus write) and bf16 matrix rate on random data."""
    big = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    other = torch.empty_like(big)
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).unbind()
    copy = min(timing.replay_ms(timing_graph(lambda: other.copy_(big)), 5) for _ in range(3))
    product = min(timing.replay_ms(timing_graph(lambda: a @ b), 5) for _ in range(3))
    return {"bytes_per_s": 2 * big.numel() * 2 / copy * 1e3, "flop_per_s": 2 * 8192**3 / product * 1e3}


class timing_graph:  # noqa: N801 - stands in for a graph
    """Anything that can be replayed."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.replay = call


def check(subject: str, plan: Plan, problem: Problem, reference: torch.Tensor) -> dict[str, float]:
    """Distances of a subject's answer on a timed problem."""
    problem.out.fill_(float("nan"))
    errors = measure(runner(subject, plan)(problem), reference)
    return {"relative": errors.relative, "worst_element": errors.worst_element}


def card_state() -> dict[str, str]:
    """Clocks, power, temperature and throttle reasons as nvidia-smi tells them."""
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    values = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip().split(", ")
    return dict(zip(fields.split(","), values, strict=False))


def cell(shape: str, tokens: int, weights: list[Problem], limits: dict[str, float], subjects: list[str]) -> dict[str, object]:
    """Tune, check and time every subject at one number of tokens."""
    layers = problems(shape, tokens, weights)
    reference = oracle(layers[0])
    began = time.perf_counter()
    chosen = [s for s in subjects if s != "ours-owner" or tokens <= OWNER_TOKENS]
    plans, searched = {}, {}
    for subject in chosen:
        plans[subject], seen = tune(subject, layers)
        searched[subject] = {"tried": len(seen), "seconds_us": seen}
    tuning_s = time.perf_counter() - began
    errors = {subject: check(subject, plans[subject], layers[0], reference) for subject in chosen}
    profiles = {subject: timing.profile_us(runner(subject, plans[subject]), layers) for subject in chosen}
    graphs = {subject: timing.capture(runner(subject, plans[subject]), layers) for subject in chosen}
    if "sglang" in graphs:
        graphs["sglang-again"] = timing.capture(runner("sglang", plans["sglang"]), layers)
        graphs["sglang-untuned"] = timing.capture(runner("sglang", None), layers)
    before = card_state()
    samples = timing.interleave(graphs, LAYERS, ROUNDS, seed=tokens)
    base = samples.get("sglang")
    ratios = {name: timing.ratio_interval(base, values) for name, values in samples.items()} if base else {}
    return {
        "shape": shape, "tokens": tokens, "case": str(case_of(shape, tokens)), "floor_us": floor_us(layers, **limits),
        "plans": {name: plan_to(plan) for name, plan in plans.items()}, "errors": errors,
        "samples_us": samples, "kernels_us": profiles,
        "sglang_over_subject": ratios, "tuning_s": tuning_s, "searched": searched,
        "card_before": before, "card_after": card_state(),
    }  # fmt: skip


def show(result: dict) -> None:
    medians = {name: sorted(values)[len(values) // 2] for name, values in result["samples_us"].items()}
    print(f"{result['shape']} M={result['tokens']} floor {result['floor_us']:.1f} us, tuned in {result['tuning_s']:.0f} s")
    for name, value in sorted(medians.items(), key=lambda pair: pair[1]):
        middle, low, high = result["sglang_over_subject"].get(name, (0, 0, 0))
        error = result["errors"].get(name, {}).get("relative", float("nan"))
        shown = ", ".join(f"{key[:22]} {value:.1f}" for key, value in result["kernels_us"].get(name, {}).items() if value > 0.5)
        print(f"   {name:18} {value:9.1f} us  x{middle:.3f} [{low:.3f}, {high:.3f}]  relative error {error:.2e}  {shown}")


def compile_one(task: tuple[str, str, int, dict]) -> str:
    """In a worker: run one plan once, which leaves its kernels in Triton's cache."""
    from perfgate.kernels.tiles import plan_from

    subject, shape, tokens, entry = task
    try:
        if shape not in _WORKER:
            _WORKER[shape] = build(replace(case_of(shape, 1), seed=0), "cuda")
        layer = _WORKER[shape]
        hidden = torch.randn(tokens, layer.hidden_size, device="cuda", dtype=torch.bfloat16)
        ids = torch.arange(tokens * layer.top_k, device="cuda", dtype=torch.int32).view(tokens, -1) % layer.experts
        router = torch.ones(tokens, layer.top_k, device="cuda")
        runner(subject, plan_from(entry))(replace(layer, hidden=hidden, topk_ids=ids, topk_weights=router, out=hidden.clone()))
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - a plan that does not fit is found again, and judged, by the tuner
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


_WORKER: dict[str, Problem] = {}


def warm_plans(shape: str, tokens: list[int], subjects: list[str]) -> list[tuple[str, str, int, dict]]:
    """Every (subject, plan) of the first stage of every search, once per divisibility class of the slot count."""
    tasks = {}
    for count in tokens:
        layer = case_of(shape, count)
        tiles = search.space(count * layer.k / min(layer.E, count * layer.k))
        for subject in subjects:
            variant = Variant.ATOMIC32 if subject == "ours-atomic32" else Variant.SLOTS
            plans = [Plan(variant=variant, gate_up=t, down=t) for t in tiles]
            big = [t for t in tiles if t.m >= 64]
            big += [replace(t, group_m=group) for t in big if t.m * t.n * t.stages == LARGEST for group in search.GROUPS]
            plans += [Plan(variant=variant, gate_up=t, down=replace(t, tma=is_tma)) for t in big for is_tma in (False, True)]
            if subject == "ours-slots":
                plans += [replace(plan, is_direct=True) for plan in plans if plan.gate_up.m == 16]
                every = [
                    replace(t, short=is_short, tma=is_tma)
                    for t in big
                    for is_short in (False, True)
                    for is_tma in (False, True)
                ]
                plans += [Plan(variant=variant, gate_up=t, down=t) for t in every]
            if subject == "ours-owner":
                plans = list(search.owner_plans(tiles)) if count <= OWNER_TOKENS else []
            for plan in plans:
                tasks[subject, shape, count * layer.k % 16 == 0, json.dumps(plan_to(plan))] = count
    return [(subject, name, count, json.loads(text)) for (subject, name, _, text), count in tasks.items()]


def warm(shape: str, tokens: list[int], subjects: list[str], workers: int) -> None:
    """Compile in parallel, so that no compilation is timed and little device time is spent on it."""
    tasks = warm_plans(shape, tokens, subjects)
    began = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        problems_found = {text for text in pool.map(compile_one, tasks) if text}
    print(f"compiled {len(tasks)} plans in {time.perf_counter() - began:.0f} s; {sorted(problems_found)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--subjects", nargs="+", default=list(SUBJECTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--deadline", type=float, default=1e9, help="begin no cell after this many seconds")
    options = parser.parse_args()
    began = time.perf_counter()
    if options.workers:
        warm(options.shape, options.tokens, options.subjects, options.workers)
    limits = ceilings()
    weights = weight_sets(options.shape)
    head = {"argv": sys.argv[1:], "torch": torch.__version__, "ceilings": limits, "card": card_state(), "cells": []}
    for tokens in options.tokens:
        if time.perf_counter() - began > options.deadline:
            print(f"out of time before M={tokens}")
            break
        head["cells"].append(cell(options.shape, tokens, weights, limits, options.subjects))
        show(head["cells"][-1])
        temporary = options.out.with_suffix(".part")
        temporary.write_text(json.dumps(head))
        temporary.replace(options.out)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
