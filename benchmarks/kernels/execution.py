"""Run our variants the ways a server runs them, on one CUDA device, and hold them to what they promise.

python benchmarks/kernels/execution.py --out execution.json

CUDA graphs replayed with other routing and activations, two graphs by turns, a stream of its own, torch.compile, 20 reruns, a
token alone and in a batch. One line per check; exit code 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import torch
from torch import Tensor
from triton.errors import TritonError

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.accuracy import RELAXED, AnswerDrift, measure_drift
from perfgate_moe.exam.cases import MODEL_SHAPES, LayerCase
from perfgate_moe.exam.conformance import CRASHES
from perfgate_moe.exam.data import build
from perfgate_moe.exam.implementations import Implementation, find
from perfgate_moe.layer.problem import Problem
from perfgate_moe.timing.survey import describe_device

VARIANTS = ("triton", "triton-slots", "triton-direct", "triton-owner", "triton-atomic32")
BATCH_INVARIANT = {"triton-owner"}
RERUNS = 20
REPLAYS = 4
GARBAGE = 12345.0
BUSY_CYCLES = 50_000_000  # some 30 ms: long enough for a kernel on a wrong stream to come first
SMALL = LayerCase(E=8, k=4, H=128, I=96, M=33, dtype="bfloat16")
MODEL_TOKENS = (1, 4, 256)

LayerFunction = Callable[[Problem], Tensor]
SAME = AnswerDrift(ulps=0.0, share=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One check of one variant; `seen` is the largest drift, `reason` says why it was left out or went wrong."""

    check: str
    implementation: str
    layer: str
    state: str
    seen: AnswerDrift | None = None
    reason: str = ""

    def __str__(self) -> str:
        """One line."""
        drift = "" if self.seen is None else f" ({self.seen.ulps:g} ulp at most, {self.seen.share:.4%} of elements)"
        return f"{self.state:8} {self.implementation:16} {self.check}: {self.layer}{drift}{self.reason and ': ' + self.reason}"


def allowed(implementation: Implementation) -> AnswerDrift:
    """How far two answers of an implementation may be apart."""
    return SAME if implementation.is_deterministic else RELAXED


def worst(drifts: Iterator[AnswerDrift]) -> AnswerDrift:
    """The largest of each measure."""
    found = list(drifts)
    return AnswerDrift(ulps=max(one.ulps for one in found), share=max(one.share for one in found))


def take(problem: Problem, rows: slice) -> Problem:
    """The layer for some of a problem's tokens, with buffers of its own."""
    own = {name: getattr(problem, name)[rows].clone() for name in ("hidden", "topk_weights", "topk_ids")}
    return replace(problem, **own, out=torch.full_like(own["hidden"], GARBAGE))


def shuffle(problem: Problem, seed: int) -> Problem:
    """The same layer with its tokens negated and in another order, and other experts for them; no id may be -1."""
    order = torch.randperm(problem.tokens, generator=torch.Generator().manual_seed(seed)).to(problem.hidden.device)
    changed = replace(problem, hidden=-problem.hidden, topk_ids=(problem.topk_ids + seed) % problem.experts)
    return replace(
        changed, hidden=changed.hidden[order], topk_ids=changed.topk_ids[order].contiguous(), out=torch.empty_like(problem.out)
    )


def feed(static: Problem, problem: Problem) -> None:
    """Put a problem's tokens into the buffers that a graph was captured with, garbage into its output."""
    for name in ("hidden", "topk_weights", "topk_ids"):
        getattr(static, name).copy_(getattr(problem, name))
    static.out.fill_(GARBAGE)


def rerun(run: LayerFunction, problem: Problem) -> AnswerDrift:
    """The largest drift of reruns from the first answer, with garbage in the output before each."""
    first = run(problem).clone()

    def again() -> AnswerDrift:
        problem.out.fill_(GARBAGE)
        return measure_drift(run(problem), first)

    return worst(again() for _ in range(RERUNS))


def ask_alone(run: LayerFunction, problem: Problem) -> AnswerDrift:
    """The largest drift of a token's answer when it is asked alone from its answer in the batch."""
    whole = run(problem).clone()
    tokens = range(min(problem.tokens, 16))
    return worst(measure_drift(run(take(problem, slice(i, i + 1))), whole[i : i + 1]) for i in tokens)


def capture(run: LayerFunction, static: Problem, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of one call; everything is compiled before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        answer = run(static)
    return graph, answer


def replay(run: LayerFunction, problem: Problem) -> AnswerDrift:
    """One graph, other routing and activations before each replay: drift from eager answers."""
    static = take(problem, slice(None))
    graph, answer = capture(run, static)

    def once(seed: int) -> AnswerDrift:
        changed = shuffle(problem, seed)
        feed(static, changed)
        graph.replay()
        return measure_drift(answer.clone(), run(changed))

    return worst(once(seed) for seed in range(REPLAYS))


def alternate(run: LayerFunction, problem: Problem) -> AnswerDrift:
    """Two graphs of different sizes in one memory pool, as servers capture them, replayed by turns."""
    halves = [take(problem, slice(None)), take(problem, slice(0, max(1, problem.tokens // 2)))]
    first = capture(run, halves[0])
    graphs = [first, capture(run, halves[1], first[0].pool())]

    def once(turn: int) -> AnswerDrift:
        static, (graph, answer) = halves[turn % 2], graphs[turn % 2]
        changed = shuffle(static, turn)
        feed(static, changed)
        graph.replay()
        return measure_drift(answer.clone(), run(changed))

    return worst(once(turn) for turn in range(2 * REPLAYS))


def run_aside(run: LayerFunction, problem: Problem) -> AnswerDrift:
    """A call on a stream of its own, whose input comes late on that stream: work put on another stream would read zeros."""
    eager = run(problem).clone()
    late = take(problem, slice(None))
    late.hidden.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)  # noqa: SLF001 - torch has no public way to keep a stream busy
        late.hidden.copy_(problem.hidden)
        answer = run(late)
        found = answer.clone()
    stream.synchronize()
    return measure_drift(found, eager)


def run_compiled(run: LayerFunction, problem: Problem) -> AnswerDrift:
    """The layer between two operations that torch.compile may fuse; drift from the same without compilation."""

    def step(hidden: Tensor) -> Tensor:
        return run(replace(problem, hidden=-hidden)) * 2

    plain = step(problem.hidden).clone()
    problem.out.fill_(GARBAGE)
    return measure_drift(torch.compile(step, dynamic=False)(problem.hidden), plain)


ANYWHERE: dict[str, Callable[[LayerFunction, Problem], AnswerDrift]] = {"20 reruns": rerun}
ON_CUDA: dict[str, Callable[[LayerFunction, Problem], AnswerDrift]] = {
    "graph replayed with other routing": replay,
    "two graphs by turns": alternate,
    "a stream of its own": run_aside,
}
# What torch.compile cannot do is no defect of a layer, which a server can leave out of compilation.
OPTIONAL: dict[str, Callable[[LayerFunction, Problem], AnswerDrift]] = {"torch.compile": run_compiled}


def judge(
    check: str,
    function: Callable[[LayerFunction, Problem], AnswerDrift],
    implementation: Implementation,
    layer: str,
    problem: Problem,
) -> Outcome:
    """Run one check: sound, wrong, or left out with the reason."""
    outcome = partial(Outcome, check=check, implementation=implementation.name, layer=layer)
    try:
        seen = function(implementation.load(), problem)
    except NotApplicableError as reason:
        return outcome(state="skipped", reason=str(reason))
    except (*CRASHES, TritonError, OSError, SubprocessError) as error:  # the last two of a compiler that is started
        state = "skipped" if check in OPTIONAL else "wrong"
        line = (str(error).strip().splitlines() or ["no reason"])[0]
        return outcome(state=state, reason=f"{type(error).__name__}: {line}"[:300])
    # A token alone has no other order of additions to take: it gives the same bits or breaks its promise.
    most = SAME if function is ask_alone else allowed(implementation)
    return outcome(state="wrong" if seen.exceeds(most) else "sound", seen=seen)


def checks_for(name: str, *, on_cuda: bool, is_small: bool) -> dict[str, Callable[[LayerFunction, Problem], AnswerDrift]]:
    """The checks of one variant on one layer."""
    found = ANYWHERE | (ON_CUDA if on_cuda else {})
    if name in BATCH_INVARIANT:
        found |= {"a token alone as in its batch": ask_alone}
    return found | (OPTIONAL if on_cuda and is_small else {})


def examine(names: tuple[str, ...], device: str, model: dict[str, Any], tokens: tuple[int, ...]) -> Iterator[Outcome]:
    """Every check of every variant, on a small layer and on a model's."""
    large = build(LayerCase(**model, M=max(tokens), dtype="bfloat16"), device)
    layers = {str(SMALL): build(SMALL, device)}
    layers |= {str(LayerCase(**model, M=count, dtype="bfloat16")): take(large, slice(0, count)) for count in tokens}
    for name in names:
        implementation = find(name)
        for layer, problem in layers.items():
            on_cuda = device == "cuda"
            for check, function in checks_for(name, on_cuda=on_cuda, is_small=layer == str(SMALL)).items():
                yield judge(check, function, implementation, layer, take(problem, slice(None)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impl", action="append", default=[], help=f"default: {', '.join(VARIANTS)}")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("execution.py: no CUDA device here: graphs and streams exist on one only", file=sys.stderr)
        return 2
    began = time.perf_counter()
    outcomes = []
    for outcome in examine(tuple(options.impl) or VARIANTS, "cuda", MODEL_SHAPES[0], MODEL_TOKENS):
        outcomes.append(outcome)
        print(outcome, flush=True)
    wrong = sum(outcome.state == "wrong" for outcome in outcomes)
    seconds = time.perf_counter() - began
    about = {**describe_device(), "command": shlex.join(sys.argv), "seconds": seconds, "reruns": RERUNS}
    content = {"about": about, "checks": [asdict(outcome) for outcome in outcomes]}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sound = sum(outcome.state == "sound" for outcome in outcomes)
    print(f"{sound} sound, {wrong} wrong, {len(outcomes) - sound - wrong} skipped, {seconds:.0f} s")
    return 1 if wrong or not sound else 0


if __name__ == "__main__":
    sys.exit(main())
