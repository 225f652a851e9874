"""Find the fastest plan for a layer on this device; SGLang's kernels get the same space of tiles and the same budget."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from perfgate_moe.engines import sglang_mxfp4_peer, sglang_peer, sglang_runners, vllm_peer
from perfgate_moe.errors import MoeInputError, TuningError
from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.layer import fused
from perfgate_moe.layer.bricks import lay_out
from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.reference import oracle
from perfgate_moe.layer.tiles import TilePlan, Variant, plan_to
from perfgate_moe.timing.search import owner_plans, search, search_alike, space
from perfgate_moe.timing.shapes import problems
from perfgate_moe.timing.timing import LayerFunction, interleave, quick_us, ratio_interval, record

ROUNDS = 20
OURS, UPSTREAM, UPSTREAM_MXFP4, VLLM = "ours-slots", "sglang", "sglang-mxfp4", "vllm"
OWN_TILES = (UPSTREAM_MXFP4, *sglang_runners.RUNNERS)
"""SGLang's runners that choose tiles by themselves, and read weights in layouts of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What each side of a comparison may spend on one number of tokens: seconds of searching, and plans."""

    seconds: float
    plans: int


@dataclass(slots=True, kw_only=True)
class Searched:
    """A search as it went: microseconds of every plan that was timed, in order, and the time it took."""

    budget: Budget
    seen: dict[str, float] = field(default_factory=dict)
    begun_s: float = field(default_factory=time.perf_counter)

    def time(self, plan: TilePlan, run: Callable[[TilePlan], float]) -> float:
        """The plan's time, from before if it was timed; infinite when the budget is spent."""
        key = json.dumps(plan_to(plan))
        if key not in self.seen:
            if self.is_spent:
                return float("inf")
            self.seen[key] = run(plan)
        return self.seen[key]

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be timed. The first plan always may."""
        spent_s = time.perf_counter() - self.begun_s
        return bool(self.seen) and (spent_s >= self.budget.seconds or len(self.seen) >= self.budget.plans)


UNLIMITED = Budget(seconds=float("inf"), plans=1 << 30)
Found = tuple[TilePlan | None, Searched]
"""A plan, none where a subject chooses its tiles by itself, and the search for it."""


def runner(subject: str, plan: TilePlan | None) -> LayerFunction:
    """The function that runs a subject, ours, SGLang's or vLLM's, with a plan; None is their own choice of tiles.

    SGLang's runners of OWN_TILES have no other choice.
    """
    if subject == VLLM:
        return partial(vllm_peer.layer, plan=plan)
    if subject == UPSTREAM_MXFP4:
        return sglang_mxfp4_peer.layer
    if subject in sglang_runners.RUNNERS:
        return partial(sglang_runners.layer, subject)
    if subject.startswith("sglang"):
        return partial(sglang_peer.fused_experts, is_sum_fused=subject.endswith("fused-sum"), plan=plan)
    return partial(fused.fused_moe, plan=plan)


def find_plan(subject: str, layers: Sequence[Problem], budget: Budget = UNLIMITED) -> tuple[TilePlan, Searched]:
    """The best plan of a subject within its budget, and every time that was looked at."""
    searched = Searched(budget=budget)

    def seconds(plan: TilePlan) -> float:
        return searched.time(plan, lambda chosen: quick_us(runner(subject, chosen), layers))

    slots, quant = layers[0].topk_ids.numel(), layers[0].quant
    tiles = space(slots / min(layers[0].experts, slots), quant)
    if subject == VLLM:
        return search_alike(tiles, seconds), searched
    if subject == "ours-owner":
        return min(owner_plans(tiles), key=seconds), searched
    variant = Variant.ATOMIC32 if subject == "ours-atomic32" else Variant.SLOTS
    return search(variant, tiles, seconds, is_ours=subject.startswith("ours"), quant=quant), searched


def read_weights(subject: str, weights: Sequence[Problem]) -> Sequence[Problem]:
    """The weights as a subject reads them, as a server has them once they are loaded: 4-bit ones of ours in bricks and of
    SGLang's Triton layer in 16 bits, those of SGLang's runners of OWN_TILES in the layout of their products.
    """
    if subject.startswith("ours"):
        return [lay_out(each) if each.quant == "mxfp4" else each for each in weights]
    if subject == UPSTREAM_MXFP4:
        return [sglang_mxfp4_peer.load(each) for each in weights]
    if subject in sglang_runners.RUNNERS:
        return [sglang_runners.load(subject, each) for each in weights]
    return [sglang_peer.widen(each) for each in weights] if subject.startswith("sglang") else weights


def name_weights(subject: str, layer: Problem) -> str:
    """What a subject's weights are, for a reader: `mxfp4`, or `16 bits (widened from mxfp4)`."""
    is_widened = subject.startswith("sglang") and subject not in OWN_TILES and layer.quant == "mxfp4"
    own = sglang_peer.WIDENED if is_widened else layer.quant
    return "16 bits" if own == "none" else own


def require_gpu() -> str:
    """The device's name; MoeInputError in one line where there is none."""
    if not torch.cuda.is_available():
        raise MoeInputError("perfgate kernels tune needs an NVIDIA GPU, and torch sees none: run it on the device to be tuned")
    return str(torch.cuda.get_device_name())


def tune(shape: LayerCase, token_counts: Sequence[int], weights: Sequence[Problem], budget: Budget) -> Iterator[dict[str, Any]]:
    """Tune one shape at each number of tokens; one result each, as JSON values.

    Ours and SGLang's get the same tiles and the same budget, then both are timed by turns with an A/A control. SGLang's runner
    of 4-bit weights chooses its tiles by itself, and its routing is made before: it does less than ours. Raise TuningError when
    the best plan's answer is wrong: nothing is stored then.
    """
    subjects = (OURS, *list_upstream(shape))
    own = {subject: read_weights(subject, weights) for subject in subjects}
    for tokens in token_counts:
        layers = {subject: problems(shape, tokens, own[subject]) for subject in subjects}
        if UPSTREAM_MXFP4 in layers:
            layers[UPSTREAM_MXFP4] = [sglang_mxfp4_peer.route_ahead(each) for each in layers[UPSTREAM_MXFP4]]
        found: dict[str, Found] = {
            subject: (None, Searched(budget=budget)) if subject in OWN_TILES else find_plan(subject, layers[subject], budget)
            for subject in subjects
        }
        for subject, (plan, _) in found.items():
            require_right(subject, plan, layers[subject][0], shape.precision)
        graphs = {subject: record(runner(subject, plan), layers[subject]) for subject, (plan, _) in found.items()}
        last = subjects[-1]
        graphs["again"] = record(runner(last, found[last][0]), layers[last])
        samples = interleave(graphs, len(layers[last]), ROUNDS, seed=tokens)
        yield summarise(tokens, found, samples)


def list_upstream(shape: LayerCase) -> list[str]:
    """What a server would run instead of ours: SGLang's own runner of 4-bit weights, else its Triton layer, if installed."""
    subject, peer = (UPSTREAM_MXFP4, sglang_mxfp4_peer) if shape.quant == "mxfp4" else (UPSTREAM, sglang_peer)
    return [subject] if peer.is_installed() else []


def summarise(tokens: int, found: Mapping[str, Found], samples: dict[str, list[float]]) -> dict[str, Any]:
    """One tuned number of tokens: our plan, and how it was found and compared."""
    plans = {subject: None if plan is None else plan_to(plan) for subject, (plan, _) in found.items()}
    last = list(found)[-1]
    result = {
        "tokens": tokens,
        "plan": plans[OURS],
        "ours_us": median(samples[OURS]),
        "control": ratio_interval(samples[last], samples["again"]),
        "tried": {subject: len(searched.seen) for subject, (_, searched) in found.items()},
        "is_cut_short": {subject: searched.is_spent for subject, (_, searched) in found.items()},
        "samples_us": samples,
    }
    if last != OURS:
        result["upstream_us"] = median(samples[last])
        result["upstream_plan"] = plans[last]
        result["upstream_over_ours"] = ratio_interval(samples[last], samples[OURS])
    return result


def require_right(subject: str, plan: TilePlan | None, problem: Problem, precision: str) -> None:
    """TuningError if an answer on a timed problem is further from the oracle than the suite allows `LayerCase.precision`."""
    poisoned = replace(problem, out=torch.full_like(problem.out, float("nan")))
    violations = TOLERANCES[precision].violations(measure(runner(subject, plan)(poisoned), oracle(problem)))
    if violations:
        tiles = "its own tiles" if plan is None else plan_to(plan)
        raise TuningError(f"{subject} with {tiles} at {problem.tokens} tokens is wrong: {'; '.join(violations)}")
