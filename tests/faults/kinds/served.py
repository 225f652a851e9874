"""Candidates that are slow or wrong while they serve, each a whole gate with the fake engine in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.gating import Gate, run_gate

FAST = ("--candidate-env", "FAKE_SLOW=0.5")


def answering(fault: str) -> Callable[[Path], Answer]:
    return run_gate(*FAST, "--candidate-env", f"FAKE_ANSWER={fault}")


def serving(*args: str) -> Callable[[Path], Answer]:
    """The candidate is started with other arguments."""
    return run_gate(*FAST, *(f"--candidate-arg={argument}" for argument in args))


def serve_dense(folder: Path) -> Answer:
    model = folder / "dense"
    model.mkdir()
    config = {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1536}
    (model / "config.json").write_text(json.dumps(config))
    return Gate(folder=folder, options=("--model", str(model))).run()


def row(kind: Kind, name: str, made: str, run: Callable[[Path], Answer], words: str, *, is_long: bool = False) -> Fault:
    expected = ("REGRESSION",) if kind is Kind.SLOW else ("INVALID",)
    return Fault(name=name, kind=kind, made=made, where=Where.FAKE, expected=expected, words=words, run=run, is_long=is_long)


def gating(metric: str, looks: int, *options: str) -> Callable[[Path], Answer]:
    """A gate whose scenario gates one metric more, over so many blocks."""
    more = {
        "[gates.output_tok_per_s]": f"[gates.{metric}]\n[gates.output_tok_per_s]",
        'resident = "both"': 'resident = "one"',
    }
    return run_gate(*options, **more, **{"looks = [2, 3, 4, 6]": f"looks = [{looks}]"})


SERVED = (
    row(
        Kind.SLOW,
        "slow start",
        "ready after 12 s instead of 4; ready_s gates",
        gating("ready_s", 4, "--both-env", "FAKE_START_S=4", "--candidate-env", "FAKE_START_S=12"),
        "Time to ready is worse",
        is_long=True,
    ),
    row(
        Kind.SLOW,
        "memory growth",
        "30 MiB kept of every window; server_memory_mib gates",
        gating("server_memory_mib", 3, "--candidate-env", "FAKE_LEAK_MIB=30"),
        "Server memory is worse",
        is_long=True,
    ),
    row(
        Kind.SLOW,
        "half as fast",
        "every latency doubled",
        run_gate("--candidate-env", "FAKE_SLOW=2.0"),
        "Output throughput is worse",
    ),
    row(
        Kind.WRONG, "wrong answers at twice the speed", "another model's log-probs", answering("wrong"), "its answers are wrong"
    ),
    row(
        Kind.WRONG,
        "no answers at twice the speed",
        "HTTP 500 to every question",
        answering("refuse"),
        "server refused the equivalence prompts with HTTP 500",
        is_long=True,
    ),
    row(
        Kind.WRONG,
        "swapped tokenizer, served",
        "other text for equal tokens",
        answering("other_text"),
        "its tokenizer is another one",
        is_long=True,
    ),
    row(Kind.WRONG, "dense model", "refused before a start: no experts in its config.json", serve_dense, "num_experts_per_tok"),
    row(
        Kind.WRONG,
        "fewer layers by argument",
        "refused before a start: num_hidden_layers 1",
        serving('--json-model-override-args={"num_hidden_layers": 1}'),
        "layers is 1, the scenario wants 2",
    ),
    row(
        Kind.WRONG,
        "dropped expert by argument",
        "refused before a start: num_experts_per_tok 1",
        serving('--json-model-override-args={"num_experts_per_tok": 1}'),
        "top_k is 1, the scenario wants 2",
        is_long=True,
    ),
    row(
        Kind.WRONG,
        "other quantisation by argument",
        "refused before a start: --quantization fp8",
        serving("--quantization=fp8"),
        "quantization",
    ),
    row(
        Kind.WRONG,
        "another model by argument",
        "refused before a start: --model-path",
        serving("--model-path=/elsewhere"),
        "its arguments serve",
        is_long=True,
    ),
    row(
        Kind.WRONG,
        "slow-down that never ran",
        "an injection the server ignored",
        run_gate("--candidate-inject", "host:500"),
        "never ran in the server",
        is_long=True,
    ),
    row(
        Kind.WRONG,
        "path under test not taken",
        "a kernel that was to run did not",
        run_gate(*FAST, "--expect-kernel", "fused_down_sum"),
        "no kernel matches",
        is_long=True,
    ),
)
