"""Whole MoE layers on one GPU: ours against SGLang's, both tuned over one space. Writes one JSON file of raw samples.

python benchmarks/kernels/layer.py --shape gpt-oss-20b --tokens 1 4 16 64 256 1024 4096 --out OUT.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from perfgate.kernels import search
from perfgate.kernels.accuracy import measure
from perfgate.kernels.card import read_state
from perfgate.kernels.data import build
from perfgate.kernels.problem import Problem
from perfgate.kernels.reference import oracle
from perfgate.kernels.roofline import Ceilings, floor_us, measure_ceilings
from perfgate.kernels.shapes import LAYERS, SHAPES, problems, weight_sets
from perfgate.kernels.tiles import Plan, Variant, plan_to
from perfgate.kernels.timing import capture, interleave, profile_us, ratio_interval
from perfgate.kernels.tuner import find_plan, runner

ROUNDS = 30
SUBJECTS = ("ours-slots", "ours-atomic32", "ours-owner", "sglang", "sglang-fused-sum")
OWNER_TOKENS = 4
LARGEST = 128 * 256 * 4  # rows, columns and stages of the tile that wins most often: its row groups are compiled ahead too


def check(subject: str, plan: Plan, problem: Problem, reference: torch.Tensor) -> dict[str, float]:
    """Distances of a subject's answer on a timed problem."""
    problem.out.fill_(float("nan"))
    errors = measure(runner(subject, plan)(problem), reference)
    return {"relative": errors.relative, "worst_element": errors.worst_element}


def cell(shape: str, tokens: int, weights: Sequence[Problem], limits: Ceilings, subjects: list[str]) -> dict[str, object]:
    """Tune, check and time every subject at one number of tokens."""
    layers = problems(SHAPES[shape], tokens, weights)
    reference = oracle(layers[0])
    began = time.perf_counter()
    chosen = [s for s in subjects if s != "ours-owner" or tokens <= OWNER_TOKENS]
    plans, searched = {}, {}
    for subject in chosen:
        plans[subject], found = find_plan(subject, layers)
        searched[subject] = {"tried": len(found.seen), "seconds_us": found.seen}
    tuning_s = time.perf_counter() - began
    errors = {subject: check(subject, plans[subject], layers[0], reference) for subject in chosen}
    profiles = {subject: profile_us(runner(subject, plans[subject]), layers) for subject in chosen}
    graphs = {subject: capture(runner(subject, plans[subject]), layers) for subject in chosen}
    if "sglang" in graphs:
        graphs["sglang-again"] = capture(runner("sglang", plans["sglang"]), layers)
        graphs["sglang-untuned"] = capture(runner("sglang", None), layers)
    before = read_state()
    samples = interleave(graphs, LAYERS, ROUNDS, seed=tokens)
    base = samples.get("sglang")
    ratios = {name: ratio_interval(base, values) for name, values in samples.items()} if base else {}
    return {
        "shape": shape, "tokens": tokens, "case": str(replace(SHAPES[shape], M=tokens)), "floor_us": floor_us(layers, limits),
        "plans": {name: plan_to(plan) for name, plan in plans.items()}, "errors": errors,
        "samples_us": samples, "kernels_us": profiles,
        "sglang_over_subject": ratios, "tuning_s": tuning_s, "searched": searched,
        "card_before": before, "card_after": read_state(),
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
            _WORKER[shape] = build(replace(SHAPES[shape], M=1), "cuda")
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
        layer = SHAPES[shape]
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
    limits = measure_ceilings()
    weights = weight_sets(SHAPES[options.shape], "cuda")
    head = {"argv": sys.argv[1:], "torch": torch.__version__, "ceilings": asdict(limits), "card": read_state(), "cells": []}
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
