"""Whole MoE layers as pytest-benchmarks, two implementations by turns; `perfgate check` judges what this stores.

    for block in 1 2 3 4; do
      python -m pytest benchmarks/kernels/test_layers.py --benchmark-enable --benchmark-storage=RESULTS --benchmark-save=block \
        --shape gpt-oss-20b --base sglang --candidate triton
    done
    perfgate check RESULTS

Each run is a process of its own and so one block of evidence. The benchmark's own statistics are the candidate's; the pairs
stand in `extra_info`. On a GPU both sides are CUDA graphs over rotating weights, timed by CUDA events.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.implementations import find
from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.reference import oracle
from perfgate_moe.timing.roofline import Ceilings, floor_us, measure_ceilings
from perfgate_moe.timing.shapes import LAYERS, find_shape, problems, weight_sets
from perfgate_moe.timing.survey import read_state
from perfgate_moe.timing.timing import Clock, LayerFunction, Replayable, count_replays, record

# SGLang warns on import; that is no failure of a layer.
pytestmark = pytest.mark.filterwarnings("default")
FORMAT = 1
CLOCK = Clock()


@pytest.fixture(scope="session")
def weights() -> Callable[[str], list[Problem]]:
    """The weights of a layer, drawn once; those of the layer before are given up."""
    kept: dict[str, list[Problem]] = {}

    def get(shape: str) -> list[Problem]:
        if shape not in kept:
            kept.clear()
            kept[shape] = weight_sets(find_shape(shape), "cuda" if torch.cuda.is_available() else "cpu")
        return kept[shape]

    return get


@pytest.fixture(scope="session")
def ceilings() -> Ceilings | None:
    """What the card can do; None without one."""
    return measure_ceilings() if torch.cuda.is_available() else None


@dataclass(slots=True, kw_only=True)
class Turns:
    """Rounds of candidate, base, and base again: the last two before the candidate in even rounds, after it in odd ones."""

    sides: dict[str, Replayable]
    replays: dict[str, int]
    order: random.Random
    round: int = 0
    samples_us: dict[str, list[float]] = field(default_factory=lambda: {"base": [], "again": []})

    def candidate(self) -> None:
        """What the benchmark times."""
        for _ in range(self.replays["candidate"]):
            self.sides["candidate"].replay()

    def before(self) -> None:
        """The round's beginning."""
        if self.round % 2 == 0:
            self._controls()

    def after(self) -> None:
        """The round's end."""
        if self.round % 2:
            self._controls()
        self.round += 1

    def _controls(self) -> None:
        for name in self.order.sample(["base", "again"], 2):
            begun_s = CLOCK()
            for _ in range(self.replays[name]):
                self.sides[name].replay()
            self.samples_us[name].append((CLOCK() - begun_s) * 1e6 / self.replays[name] / LAYERS)


@pytest.fixture
def turns(request: pytest.FixtureRequest, shape: str, tokens: int, weights: Callable[[str], list[Problem]]) -> Iterator[Turns]:
    """Both sides ready to be replayed, their answers checked on a timed problem."""
    layers = problems(find_shape(shape), tokens, weights(shape))
    runs = {side: find(request.config.getoption(side)).load() for side in ("base", "candidate")}
    request.node.errors = {side: require_right(run, layers[0], find_shape(shape).precision) for side, run in runs.items()}
    request.node.layers = layers
    sides = {"base": record(runs["base"], layers), "candidate": record(runs["candidate"], layers)}
    sides["again"] = record(runs["base"], layers)
    replays = {name: count_replays(side) for name, side in sides.items()}
    yield Turns(sides=sides, replays=replays, order=random.Random(tokens))  # noqa: S311 - an order
    torch.cuda.empty_cache()


def require_right(run: LayerFunction, problem: Problem, precision: str) -> dict[str, float]:
    """A side's distances from the oracle; a wrong side is not timed."""
    errors = measure(run(replace(problem, out=torch.full_like(problem.out, float("nan")))), oracle(problem))
    violations = TOLERANCES[precision].violations(errors)
    if violations:
        pytest.fail("; ".join(violations))
    return {"relative": errors.relative, "worst_element": errors.worst_element}


@pytest.mark.benchmark(timer=CLOCK)
def test_layer(benchmark: Any, request: pytest.FixtureRequest, turns: Turns, ceilings: Ceilings | None) -> None:
    """One layer at one number of tokens."""
    shape, tokens = (request.node.callspec.params[name] for name in ("shape", "tokens"))
    rounds = request.config.getoption("rounds")
    before = read_state()

    benchmark.pedantic(turns.candidate, setup=turns.before, teardown=turns.after, rounds=rounds, warmup_rounds=2)

    if benchmark.stats is None:
        pytest.skip("timings are off: give --benchmark-enable")
    samples = turns.samples_us | {
        "candidate": [value * 1e6 / turns.replays["candidate"] / LAYERS for value in benchmark.stats.stats.data]
    }
    benchmark.group = f"{shape} M={tokens}"
    benchmark.extra_info["perfgate"] = {
        "format": FORMAT,
        "shape": shape,
        "tokens": tokens,
        "samples_us": {name: values[2 : rounds + 2] if name != "candidate" else values for name, values in samples.items()},
        "errors": request.node.errors,
        "floor_us": floor_us(request.node.layers, ceilings) if ceilings else None,
        "card_before": before,
        "card_after": read_state(),
    }
