"""Run our kernels through Triton's interpreter and print one JSON line per check; started by test_interpreter.py.

A process of its own, because TRITON_INTERPRET must be set before the kernels are imported and stays for good.
"""

import inspect
import json
import sys
from dataclasses import make_dataclass, replace
from functools import cache
from types import SimpleNamespace

import torch
from triton.language.core import is_builtin
from triton.runtime import interpreter

from perfgate_moe.engines.counters import Counters
from perfgate_moe.engines.micro_swap import MicroSwap
from perfgate_moe.engines.sglang_peer import widen
from perfgate_moe.engines.swap import ServerState
from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import check, poisoned_allocations, prepare
from perfgate_moe.exam.data import build
from perfgate_moe.exam.implementations import find
from perfgate_moe.layer import fused
from perfgate_moe.layer.align import align, choose_by_score
from perfgate_moe.layer.bricks import HIGHEST_FOLDED, lay_out
from perfgate_moe.layer.fp8_rounding import round_to_codes
from perfgate_moe.layer.reference import oracle
from perfgate_moe.layer.tiles import SMALL, TilePlan, Tiles, Variant

TMA_TILES = replace(SMALL.gate_up, n=32, k=16, tma=True)
SHORT_TILES = replace(SMALL.gate_up, m=32, n=32, k=16, short=True)


def through_tensor_copies(problem):
    """The slots variant with both products' weights read as tiles."""
    return fused.fused_moe(problem, replace(SMALL, gate_up=TMA_TILES, down=TMA_TILES))


def with_short_blocks(problem):
    """The slots variant that computes half-filled blocks at half the height."""
    return fused.fused_moe(problem, replace(SMALL, gate_up=SHORT_TILES, down=SHORT_TILES))


RunnerInputs = make_dataclass("RunnerInputs", ["hidden_states", "rows", "n_expts_act"])
RunnerWeights = make_dataclass("RunnerWeights", ["w13_weight", "w2_weight", "w13_bias", "w2_bias"])


def plan_with(problem, *, m=16, n=64, k=128, first_n=0, is_direct=False, rounds=(False, False), walk=1):
    """A plan of quantised weights; the first product's columns may differ, each may round what it reads, the second walk."""
    tiles = Tiles(m=m, n=n, k=k, group_m=1)
    gate_up, down = replace(tiles, n=first_n or n, rounds=rounds[0]), replace(tiles, rounds=rounds[1], walk=walk)
    plan = TilePlan(variant=Variant.SLOTS, gate_up=gate_up, down=down, is_direct=is_direct)
    return fused.fused_moe(replace(problem, out=torch.full_like(problem.out, float("nan"))), plan)


# Rounding in any place, each slot by itself or sorted, weights first or second into the matrix units: always the same bits.
ALIKE = {
    "fp8": [
        {"n": 32},
        {"n": 64},
        {"first_n": 256},
        {"rounds": (True, False)},
        {"rounds": (False, True)},
        {"rounds": (True, True), "first_n": 256},
        {"is_direct": True},
        {"is_direct": True, "first_n": 256},
        {"is_direct": True, "rounds": (True, True)},
        {"m": 64, "first_n": 128},
        {"m": 64, "first_n": 256},
        {"m": 64, "walk": 2},
        {"m": 64, "walk": 9, "n": 128},
    ],
    "mxfp4": [{}, {"k": 64}, {"n": 128}, {"m": 64}, {"is_direct": True}],
}


def plan_problems(text):
    """Plans whose answer is not sound, or not bit for bit the first one's, and where rows without a slot leaked."""
    exam = prepare(LayerCase.parse(text))
    answers = []
    for options in ALIKE[exam.case.quant]:
        with poisoned_allocations():
            answers.append(plan_with(exam.problem, **options).clone())
    violations = TOLERANCES[exam.case.precision].violations(measure(answers[0], exam.reference))
    differ = [
        options
        for options, answer in zip(ALIKE[exam.case.quant], answers, strict=True)
        if not torch.equal(answer.view(torch.int16), answers[0].view(torch.int16))
    ]
    return [*violations, *(f"{options} differs" for options in differ)]


def scale_problems(text):
    """Scales too large for the codes' power: whether it is left out of them, and the answer changes in no bit.

    What has these scales is zero, so that the layer is the same.
    """
    problem = prepare(LayerCase.parse(text)).problem
    for pairs in (problem.gate_up, problem.down):
        pairs[0, 0, :16] = 0
    scales = replace(problem.scales, gate_up=problem.scales.gate_up.clone(), down=problem.scales.down.clone())
    scales.gate_up[0, 0, 0] = scales.down[0, 0, 0] = HIGHEST_FOLDED + 1
    small, large = lay_out(problem), lay_out(replace(problem, scales=scales))
    same = torch.equal(plan_with(large).view(torch.int16), plan_with(small).view(torch.int16))
    is_right = small.gate_up_bricks.is_folded and not large.gate_up_bricks.is_folded
    return ([] if same else ["large scales differ"]) + ([] if is_right else ["the power is in the wrong scales"])


def runner_problems(text):
    """What our hooks in SGLang's runner of 4-bit weights do wrong: a layer's answer by the scores that choose its experts."""
    problem = build(LayerCase.parse(text))
    scores = torch.randn(problem.tokens, problem.experts, generator=torch.Generator().manual_seed(3)).half()
    chosen, ids = scores.float().topk(problem.top_k)
    problem = replace(problem, topk_ids=ids.int(), topk_weights=chosen.softmax(-1))
    state = ServerState(is_interpreted=True)
    swap = MicroSwap(
        mode="slots", counters=Counters(mode="slots", versions={}), server=lambda: state, promised=lambda: state,
        tables=("rows", "n_expts_act"), output=SimpleNamespace,
    )  # fmt: skip
    weights = ((problem.gate_up, problem.scales.gate_up), (problem.down, problem.scales.down))
    first, second = (swap.lay_out(None, *weight, 8)[0] for weight in weights)
    inputs = RunnerInputs(problem.hidden, *swap.put_off(None, scores, problem.top_k))
    core = SimpleNamespace(config=SimpleNamespace(gemm1_alpha=1.702, gemm1_clamp_limit=7.0))
    with poisoned_allocations():
        answer = swap.run(
            None, core, inputs, RunnerWeights(first, second, problem.gate_up_bias, problem.down_bias)
        ).hidden_states
    counted = dict(swap.counters.computed) == {"slots/eager": 1}
    return [*TOLERANCES["float16"].violations(measure(answer, oracle(problem))), *([] if counted else ["not counted"])]


def choice_problems(experts, top_k, tokens):
    """Where the router's choice is not that of the highest scores, the lower expert first, and of their softmax."""
    scores = torch.randint(-8, 8, (tokens, experts), generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    weights, ids = torch.full((tokens, top_k), float("nan")), torch.full((tokens, top_k), -9, dtype=torch.int32)
    choose_by_score(scores, weights, ids, {"OVERLAP": False})
    order = scores.float().sort(dim=1, descending=True, stable=True)
    found = [] if ids.tolist() == order.indices[:, :top_k].tolist() else ["other experts"]
    return found + ([] if torch.allclose(weights, order.values[:, :top_k].softmax(1)) else ["other weights"])


def widening_problems(text):
    """Where a widened layer's oracle is not the packed one's: the values must be exactly the same."""
    exam = prepare(LayerCase.parse(text))
    wide = widen(exam.problem)
    same = torch.equal(oracle(wide), exam.reference) and wide.scales is None and wide.gate_up.dtype == wide.hidden.dtype
    return [] if same else ["widened weights differ"]


PLANS = {"tma": through_tensor_copies.__name__, "short": with_short_blocks.__name__}


def alignment_problems(slots, experts, block_m):
    """What is wrong with the sorted order of `slots` random slots, of which some have no expert."""
    ids = torch.randint(-1, experts, (slots // 2, 2), generator=torch.Generator().manual_seed(slots), dtype=torch.int32)
    made = align(ids, experts, block_m, {"OVERLAP": False})
    flat, used = ids.flatten(), int(made.count)
    wanted = []
    for expert in range(experts):
        own = torch.nonzero(flat == expert).flatten().tolist()
        padding = -len(own) % block_m
        wanted += [
            (expert, own[i : i + block_m] + [slots] * (block_m - len(own[i : i + block_m])))
            for i in range(0, len(own) + padding, block_m)
        ]
    rows = made.slots.view(-1, block_m)[:used].tolist()
    found = list(zip(made.experts[:used].tolist(), rows, strict=True))
    return [] if found == wanted else [f"order of {slots} slots differs from a stable sort"]


def code_problems(count):
    """Where the kernel's rounding to 8 bits differs from torch's: every code, every tie between two, and drawn values."""
    codes = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.linspace(-12, 7, count)
    values = torch.cat([codes, ties, -ties, drawn]).clamp(-448, 448)
    values = torch.nn.functional.pad(values, (0, -len(values) % 127)).unflatten(0, (-1, 127))
    rows = torch.cat([values, torch.full((len(values), 1), 448.0)], dim=1)  # a peak of 448 makes the scale 1
    found, scales = round_to_codes(rows, None, 0, {"OVERLAP": False})
    wrong = found.float() != rows.to(torch.float8_e4m3fn).float()
    return [f"{value} is rounded differently" for value in rows[wrong].tolist()[:5]] + (
        [] if bool((scales == 1).all()) else ["scale"]
    )


@cache
def list_builtins(place):
    """The names of a module or class of Triton that its interpreter replaces, before it has done so."""
    return [name for name, member in inspect.getmembers(place) if is_builtin(member)]


def replace_builtins(place, builder, scope):
    """What the interpreter does at each call of a function in a kernel, but for looking at every member again."""
    for name in list_builtins(place):
        if is_builtin(member := getattr(place, name)):
            interpreter._patch_attr(place, name, member, builder, scope)


def main():
    interpreter._patch_builtin = replace_builtins
    for line in sys.stdin:
        name, _, rest = line.strip().partition(" ")
        if name == "align":
            problems = alignment_problems(*map(int, rest.split()))
        elif name == "codes":
            problems = code_problems(int(rest))
        elif name == "alike":
            problems = plan_problems(rest)
        elif name == "choose":
            problems = choice_problems(*map(int, rest.split()))
        elif name == "runner":
            problems = runner_problems(rest)
        elif name == "scales":
            problems = scale_problems(rest)
        elif name == "widen":
            problems = widening_problems(rest)
        elif name in PLANS:
            implementation = replace(find("triton-slots"), target=f"__main__:{PLANS[name]}")
            problems = check(implementation, prepare(LayerCase.parse(rest))).problems
        else:
            problems = check(find(name), prepare(LayerCase.parse(rest))).problems
        print(json.dumps({"job": line.strip(), "problems": list(problems)}), flush=True)


if __name__ == "__main__":
    main()
