"""Whole MoE layers on one GPU: ours against SGLang's and vLLM's, all tuned over one space. Writes one JSON file of raw samples.

python benchmarks/kernels/layer.py --shape gpt-oss-20b --tokens 1 4 16 64 256 1024 4096 --out OUT.json

Layers with quantised weights have one variant of ours, and SGLang's plain layer is the peer. It reads 8-bit weights as they
are, and 4-bit ones widened to 16 bits, as a server of SGLang does when it loads them; `weights` in a cell says so. For 4-bit
weights SGLang's default is another runner, `sglang-mxfp4`, which reads them as they are and chooses tiles by itself; it is
timed with what its router makes for both products, and as `sglang-mxfp4-routed` with that made before. `sglang-marlin` is its
Marlin runner of 4-bit weights, `sglang-flashinfer-mxfp4` that of FlashInfer's products, `sglang-deep-gemm` its DeepGEMM runner
of 8-bit ones. vLLM has one cut for both products, and other layers for 4-bit weights. What is not installed is left out.

Experts are drawn uniformly and by Zipf's law by turns. `--routing` takes one of them alone, or a file of choices that a session
has recorded (`expert_use/start-*.json.gz`), and may take several: a cell each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from table import read_survey

from perfgate.results.expert_use import parse_raw, unpack
from perfgate.results.raw.pack import read_raw
from perfgate_moe.engines import sglang_mxfp4_peer, sglang_runners, vllm_peer
from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.layer.problem import ACTIVATIONS, BlockScales, MicroScales, Problem, micro_blocks_of, scale_blocks_of
from perfgate_moe.layer.reference import oracle
from perfgate_moe.layer.tiles import TilePlan, Tiles, Variant, plan_from, plan_to
from perfgate_moe.timing import search
from perfgate_moe.timing.roofline import Ceilings, floor_us, measure_ceilings
from perfgate_moe.timing.shapes import LAYERS, SHAPES, Draw, draw_by_turns, problems, weight_sets
from perfgate_moe.timing.survey import read_state
from perfgate_moe.timing.timing import capture, interleave, profile_us, ratio_interval
from perfgate_moe.timing.tuner import (
    OWN_TILES,
    UNLIMITED,
    UPSTREAM_MXFP4,
    VLLM,
    Budget,
    Searched,
    find_plan,
    name_weights,
    read_weights,
    runner,
)

ROUNDS = 30
BY_TURNS, ALONE = "by-turns", ("uniform", "zipf")
SUBJECTS = ("ours-slots", "ours-atomic32", "ours-owner", "sglang", "sglang-fused-sum", VLLM)
QUANTISED_SUBJECTS = {
    "fp8": ("ours-slots", "sglang", sglang_runners.DEEP_GEMM, VLLM),
    "mxfp4": ("ours-slots", "sglang", UPSTREAM_MXFP4, sglang_runners.MARLIN, sglang_runners.FLASHINFER),
}


class Peer(Protocol):
    """A module or a runner of another's layer, which may not be installed."""

    def is_installed(self) -> bool:
        """Whether there is one to compare with, and a GPU for it."""


OPTIONAL: Mapping[str, Peer] = {VLLM: vllm_peer, UPSTREAM_MXFP4: sglang_mxfp4_peer, **sglang_runners.RUNNERS}
Known = Mapping[int, Mapping[str, TilePlan]]
"""Plans that are not searched for, by tokens and subject."""
Find = Callable[[str, Sequence[Problem]], tuple[TilePlan, Searched]]
ROUTED_AHEAD = f"{UPSTREAM_MXFP4}-routed"
OWNER_TOKENS = 4
LARGEST = 128 * 256 * 4  # rows, columns and stages of the tile that wins most often: its row groups are compiled ahead too


def check(subject: str, plan: TilePlan | None, problem: Problem, reference: torch.Tensor, precision: str) -> dict[str, object]:
    """Distances of a subject's answer on a timed problem, and which of them the suite would not accept."""
    problem.out.fill_(float("nan"))
    errors = measure(runner(subject, plan)(problem), reference)
    found: dict[str, object] = {"relative": errors.relative, "worst_element": errors.worst_element}
    problems_found = TOLERANCES[precision].violations(errors)
    return found | ({"problems": problems_found} if problems_found else {})


def find_unless_known(
    known: Mapping[str, TilePlan], budget: Budget, subject: str, layers: Sequence[Problem]
) -> tuple[TilePlan, Searched]:
    """A subject's best plan within its budget; one that is known is not searched for."""
    return (known[subject], Searched(budget=budget)) if subject in known else find_plan(subject, layers, budget)


def find_draw(routing: str, shape: LayerCase) -> Draw:
    """What draws expert ids by the name of a routing, or gives those of a file. SystemExit for a file of another model."""
    if routing == BY_TURNS:
        return draw_by_turns
    if routing in ALONE:
        return partial(draw_by_turns, routings=(routing,))
    trace = unpack(parse_raw(json.loads(read_raw(Path(routing)))))
    if (trace.experts, trace.top_k) != (shape.E, shape.k):
        raise SystemExit(f"{routing}: {trace.top_k} of {trace.experts} experts, where the layer chooses {shape.k} of {shape.E}")
    # By layer, token for token of all texts, as a step of decoding has them.
    recorded = np.stack([text.chosen for text in trace.texts]).transpose(1, 2, 0, 3).reshape(trace.layers, -1, shape.k)
    return partial(repeat_recorded, torch.from_numpy(recorded.astype(np.int32)))


def repeat_recorded(recorded: torch.Tensor, case: LayerCase, index: int, _: torch.Generator) -> torch.Tensor:
    """Expert ids [M, k] as one layer of `recorded` [layers, tokens, k] has them; they repeat where it has fewer tokens."""
    layer = recorded[index * len(recorded) // LAYERS]
    return layer[torch.arange(case.M) % len(layer)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A layer by its name, how many tokens it gets, and what chooses their experts, by its name."""

    shape: str
    tokens: int
    routing: str
    draw: Draw

    @property
    def case(self) -> LayerCase:
        """The layer with its tokens."""
        return replace(SHAPES[self.shape], M=self.tokens)


def cell(at: Asked, weights: dict[str, Sequence[Problem]], limits: Ceilings, find: Find) -> dict[str, object]:
    """Tune by `find`, check and time every subject, on its own weights, at one number of tokens."""
    chosen = [s for s in weights if s != "ours-owner" or at.tokens <= OWNER_TOKENS]
    layers = {subject: problems(at.case, at.tokens, weights[subject], at.draw) for subject in chosen}
    asked = layers[chosen[0]]
    if VLLM in layers:
        layers[VLLM] = [vllm_peer.fold_scaling(each) for each in layers[VLLM]]
    if UPSTREAM_MXFP4 in layers:
        layers[UPSTREAM_MXFP4] = [
            sglang_mxfp4_peer.score_ahead(sglang_mxfp4_peer.load(each)) for each in layers[UPSTREAM_MXFP4]
        ]
    reference = oracle(asked[0])
    began = time.perf_counter()
    plans: dict[str, TilePlan | None] = dict.fromkeys(chosen)
    searched = {}
    for subject in chosen:
        if subject not in OWN_TILES:
            plans[subject], found = find(subject, layers[subject])
            searched[subject] = {"tried": len(found.seen), "seconds_us": found.seen}
    tuning_s = time.perf_counter() - began
    precision = at.case.precision
    errors = {subject: check(subject, plans[subject], layers[subject][0], reference, precision) for subject in chosen}
    profiles = {subject: profile_us(runner(subject, plans[subject]), layers[subject]) for subject in chosen}
    graphs = {subject: capture(runner(subject, plans[subject]), layers[subject]) for subject in chosen}
    control = "sglang" if "sglang" in chosen else chosen[-1]
    graphs[f"{control}-again"] = capture(runner(control, plans[control]), layers[control])
    if "sglang" in graphs:
        graphs["sglang-untuned"] = capture(runner("sglang", None), layers["sglang"])
    if VLLM in graphs:
        graphs["vllm-untuned"] = capture(runner(VLLM, None), layers[VLLM])
    if UPSTREAM_MXFP4 in graphs:
        ahead = [sglang_mxfp4_peer.route_ahead(each) for each in layers[UPSTREAM_MXFP4]]
        graphs[ROUTED_AHEAD] = capture(runner(UPSTREAM_MXFP4, None), ahead)
    before = read_state()
    samples = interleave(graphs, LAYERS, ROUNDS, seed=at.tokens)
    ratios = {name: ratio_interval(samples[control], values) for name, values in samples.items()}
    return {
        "shape": at.shape, "tokens": at.tokens, "routing": at.routing, "case": str(at.case),
        "floor_us": floor_us(asked, limits),
        "weights": {subject: name_weights(subject, asked[0]) for subject in chosen},
        "plans": {name: plan_to(plan) for name, plan in plans.items() if plan}, "errors": errors,
        "samples_us": samples, "kernels_us": profiles,
        "control_over_subject": ratios, "tuning_s": tuning_s, "searched": searched,
        "card_before": before, "card_after": read_state(),
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    medians = {name: sorted(values)[len(values) // 2] for name, values in result["samples_us"].items()}
    print(f"{result['shape']} M={result['tokens']} floor {result['floor_us']:.1f} us, tuned in {result['tuning_s']:.0f} s")
    for name, value in sorted(medians.items(), key=lambda pair: pair[1]):
        middle, low, high = result["control_over_subject"][name]
        error = result["errors"].get(name, {}).get("relative", float("nan"))
        weights = result["weights"].get(name, "")
        shown = ", ".join(f"{key[:22]} {value:.1f}" for key, value in result["kernels_us"].get(name, {}).items() if value > 0.5)
        ratio = f"x{middle:.3f} [{low:.3f}, {high:.3f}]"
        wrong = "; ".join(result["errors"].get(name, {}).get("problems", ()))
        verdict = f"BEYOND THE LIMITS ({wrong})" if wrong else f"relative error {error:.2e}"
        print(f"   {name:18} {value:9.1f} us  {ratio}  {verdict}  {weights}  {shown}")


def blank(case: LayerCase) -> Problem:
    """One token of a case's sizes and types, all zeros: compilation asks for no values, and many workers share the card."""
    dtype = getattr(torch, case.dtype)
    kind, pack = {"none": (dtype, 1), "fp8": (torch.float8_e4m3fn, 1), "mxfp4": (torch.uint8, 2)}[case.quant]

    def zeros(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=kind, device="cuda")

    sizes = ((2 * case.I, case.H), (case.H, case.I))
    gate_up, down = (zeros(case.E, rows, columns // pack, kind=kind) for rows, columns in sizes)
    scales: BlockScales | MicroScales | None = None
    if case.quant == "fp8":
        first, second = (zeros(case.E, *scale_blocks_of(*size), kind=torch.float32) for size in sizes)
        scales = BlockScales(gate_up=first, down=second)
    if case.quant == "mxfp4":
        first, second = (zeros(case.E, *micro_blocks_of(*size), kind=torch.uint8) for size in sizes)
        scales = MicroScales(gate_up=first, down=second)
    has_bias = case.bias != "off"
    return Problem(
        hidden=zeros(1, case.H), gate_up=gate_up, gate_up_bias=zeros(case.E, 2 * case.I) if has_bias else None, down=down,
        down_bias=zeros(case.E, case.H) if has_bias else None, topk_weights=zeros(1, case.k, kind=torch.float32),
        topk_ids=zeros(1, case.k, kind=torch.int32), activation=ACTIVATIONS[case.activation], routed_scaling=case.scaling,
        weight_on_input=bool(case.on_input), out=zeros(1, case.H), scales=scales,
    )  # fmt: skip


def as_read(subject: str, case: LayerCase) -> LayerCase:
    """The case as a subject has its weights: SGLang's 4-bit ones are widened."""
    return replace(case, quant="none") if case.quant == "mxfp4" and subject.startswith("sglang") else case


def compile_one(task: tuple[str, str, int, dict[str, Any]]) -> str:
    """In a worker: run one plan once, which leaves its kernels in Triton's cache."""
    subject, shape, tokens, entry = task
    case = as_read(subject, SHAPES[shape])
    try:
        if case not in _WORKER:
            (_WORKER[case],) = read_weights(subject, [blank(case)])
        layer = _WORKER[case]
        hidden = torch.randn(tokens, case.H, device="cuda", dtype=layer.hidden.dtype)
        ids = torch.arange(tokens * case.k, device="cuda", dtype=torch.int32).view(tokens, -1) % case.E
        router = torch.ones(tokens, case.k, device="cuda")
        runner(subject, plan_from(entry))(replace(layer, hidden=hidden, topk_ids=ids, topk_weights=router, out=hidden.clone()))
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - a plan that does not fit is found again, and judged, by the tuner
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


_WORKER: dict[LayerCase, Problem] = {}
"""One layer for all subjects that read the same weights."""


def warm_plans(
    shape: str, tokens: Sequence[int], subjects: Sequence[str], known: Known
) -> list[tuple[str, str, int, dict[str, Any]]]:
    """Every (subject, plan) of the first stage of every search, once per divisibility class of the slot count."""
    tasks = {}
    for count in tokens:
        for subject in set(subjects) - set(OWN_TILES) - set(known.get(count, ())):
            layer = as_read(subject, SHAPES[shape])
            tiles = search.space(count * layer.k / min(layer.E, count * layer.k), layer.quant)
            for plan in first_stage(subject, tiles, layer.quant, count):
                tasks[subject, shape, count * layer.k % 16 == 0, json.dumps(plan_to(plan))] = count
    return [(subject, name, count, json.loads(text)) for (subject, name, _, text), count in tasks.items()]


def first_stage(subject: str, tiles: tuple[Tiles, ...], quant: str, tokens: int) -> list[TilePlan]:
    """A subject's plans that are worth compiling before its search begins."""
    if subject == VLLM:
        alike = search.alike_plans(tiles)
        return [*alike, *(group for plan in alike for group in search.alike_groups(plan))]
    is_quantised = quant != "none" and subject.startswith("ours")
    return quantised_plans(tiles, quant) if is_quantised else sixteen_bit_plans(subject, tiles, tokens)


def quantised_plans(tiles: tuple[Tiles, ...], quant: str) -> list[TilePlan]:
    """Ours, sorted and direct, with rounding where it can stand; large tiles with the row groups that are tried."""
    plans = list(search.first_plans(tiles, quant))
    large = [replace(t, group_m=group) for t in tiles if t.m >= 64 for group in search.GROUPS]
    return plans + [TilePlan(variant=Variant.SLOTS, gate_up=t, down=t) for t in large]


def sixteen_bit_plans(subject: str, tiles: tuple[Tiles, ...], tokens: int) -> list[TilePlan]:
    """Either side's plans of 16-bit weights; SGLang's of 8-bit ones too, which have the same choices."""
    if subject == "ours-owner":
        return list(search.owner_plans(tiles)) if tokens <= OWNER_TOKENS else []
    variant = Variant.ATOMIC32 if subject == "ours-atomic32" else Variant.SLOTS
    plans = [TilePlan(variant=variant, gate_up=t, down=t) for t in tiles]
    big = [t for t in tiles if t.m >= 64]
    big += [replace(t, group_m=group) for t in big if t.m * t.n * t.stages == LARGEST for group in search.GROUPS]
    plans += [TilePlan(variant=variant, gate_up=t, down=replace(t, tma=is_tma)) for t in big for is_tma in (False, True)]
    if subject == "ours-slots":
        plans += [replace(plan, is_direct=True) for plan in plans if plan.gate_up.m == 16]
        every = [replace(t, short=is_short, tma=is_tma) for t in big for is_short in (False, True) for is_tma in (False, True)]
        plans += [TilePlan(variant=variant, gate_up=t, down=t) for t in every]
    return plans


def warm(tasks: Sequence[tuple[str, str, int, dict[str, Any]]], workers: int, limit_s: float) -> None:
    """Compile in parallel, so that no compilation is timed and little device time is spent on it; not beyond `limit_s`."""
    began = time.perf_counter()
    said: set[str] = set()
    done = 0
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            for text in pool.map(compile_one, tasks, timeout=limit_s):
                done += 1
                said |= {text} if text else set()
        except TimeoutError:
            pool.shutdown(wait=True, cancel_futures=True)
    print(f"compiled {done} of {len(tasks)} plans in {time.perf_counter() - began:.0f} s; {sorted(said)}", flush=True)


def choose_subjects(shape: str, named: list[str] | None) -> list[str]:
    """The subjects of a shape, all that apply and are installed unless some are named."""
    quant = SHAPES[shape].quant
    applicable = SUBJECTS if quant == "none" else QUANTISED_SUBJECTS[quant]
    if named and (wrong := sorted(set(named) - set(applicable))):
        raise SystemExit(f"--subjects {' '.join(wrong)}: {shape} has {', '.join(applicable)}")
    missing = {subject for subject in named or applicable if subject in OPTIONAL and not OPTIONAL[subject].is_installed()}
    if named and missing:
        raise SystemExit(
            f"--subjects {' '.join(sorted(missing))}: not installed here, or no GPU is; see benchmarks/vllm/README.md"
        )
    for subject in sorted(missing):
        print(f"{subject} is left out: it is not installed here")
    return [subject for subject in named or applicable if subject not in missing]


def try_own(subject: str, weights: Sequence[Problem], sets: Sequence[Problem]) -> Sequence[Problem]:
    """The weights of a subject, in its own layout if it is one of OWN_TILES; none of one that does not run here.

    Such a runner compiles with what lies beside it: where that fails, the others are measured.
    """
    if subject not in OWN_TILES:
        return weights
    try:
        own = read_weights(subject, sets)
        runner(subject, None)(own[0])
    except Exception as error:  # noqa: BLE001 - another's code, which may raise anything
        print(f"{subject} is left out: {type(error).__name__}: {str(error)[-600:]}", flush=True)
        return ()
    return own


def read_plans(paths: Sequence[Path], shape: str, but: Collection[str]) -> Known:
    """The plans of each subject of earlier files, by tokens, but for some subjects; the last file's of a number of tokens."""
    cells = [one for path in paths for one in read_survey(path)["cells"] if one["shape"] == shape]
    return {
        one["tokens"]: {subject: plan_from(plan) for subject, plan in one["plans"].items() if subject not in but}
        for one in cells
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--subjects", nargs="+", help="default: all that the shape's weights have")
    parser.add_argument("--routing", nargs="+", default=[BY_TURNS], help=f"{BY_TURNS}, {', '.join(ALONE)}, or a file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--plans", type=Path, nargs="+", default=[], help="earlier files of this, packed with xz or not: these plans are known"
    )
    parser.add_argument("--search", nargs="+", default=[], help="subjects that are searched for all the same")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=UNLIMITED.seconds, help="search at most so long per side and cell")
    parser.add_argument(
        "--deadline", type=float, default=1e9, help="begin no cell after this many seconds; compile for a third"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    draws = {Path(routing).name: find_draw(routing, SHAPES[options.shape]) for routing in options.routing}
    subjects = choose_subjects(options.shape, options.subjects)
    known = read_plans(options.plans, options.shape, options.search)
    if options.workers:
        warm(warm_plans(options.shape, options.tokens, subjects, known), options.workers, options.deadline / 3)
    limits = measure_ceilings(has_fp8=SHAPES[options.shape].quant == "fp8")
    sets = weight_sets(SHAPES[options.shape], "cuda")
    laid, wide = read_weights("ours-slots", sets), read_weights("sglang", sets)  # once, and only where it differs
    sides = {"ours": laid, "sglang": wide, VLLM: sets}
    weights = {subject: sides[subject.partition("-")[0]] for subject in subjects}
    weights = {subject: own for subject in weights if (own := try_own(subject, weights[subject], sets))}
    if VLLM in weights:
        # Its first call takes 20 s, which a search that is given fewer would spend on one plan.
        runner(VLLM, None)(vllm_peer.fold_scaling(sets[0]))
    head = {"argv": sys.argv[1:], "torch": torch.__version__, "ceilings": asdict(limits), "card": read_state(), "cells": []}
    print(f"ready after {time.perf_counter() - began:.0f} s: {head['ceilings']}", flush=True)
    budget = Budget(seconds=options.seconds, plans=UNLIMITED.plans)
    for tokens, routing in product(options.tokens, draws):
        if time.perf_counter() - began > options.deadline:
            print(f"out of time before M={tokens}, {routing}")
            break
        find = partial(find_unless_known, known.get(tokens, {}), budget)
        at = Asked(shape=options.shape, tokens=tokens, routing=routing, draw=draws[routing])
        head["cells"].append(cell(at, weights, limits, find))
        show(head["cells"][-1])
        temporary = options.out.with_suffix(".part")
        temporary.write_text(json.dumps(head))
        temporary.replace(options.out)
        sys.stdout.flush()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
