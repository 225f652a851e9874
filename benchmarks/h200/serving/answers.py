"""How far answers drift between builds that are right and builds that are wrong, and which kernels they run: on one GPU.

    python benchmarks/h200/serving/answers.py MODEL OUT [--layers N]

MODEL is `shape` (gpt-oss-20b's shape with dummy weights, cut to N layers) or `tiny` (the generated Qwen3-MoE, whose weights
have the scale of trained ones). All servers live at the same time, which answers need not mind. OUT gets answers, traces and
logs as a result folder has them, and `table.json`: each variant's drift from the first base, and its kernels per forward step.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import make_model

from perfgate.core import Arm
from perfgate.errors import ServerError
from perfgate.evidence.answers import Answers, load_answers, store_answers
from perfgate.evidence.equivalence import measure_drift
from perfgate.evidence.profiles import Profile, load_profiles
from perfgate.load import Load
from perfgate.safeguards import Equivalence
from perfgate.serving.engines import ENGINES
from perfgate.serving.equivalence import ask
from perfgate.serving.profiling import profile_server
from perfgate.serving.reaper import Reaper
from perfgate.serving.server import Launch, Server
from perfgate.serving.tiny_model import write_tiny_model

COMMON = (
    *("--moe-runner-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--disable-prefill-cuda-graph", "--cuda-graph-max-bs-decode", "32", "--max-total-tokens", "32768"),
    *("--mem-fraction-static", "0.9"),
)
TRITON = ("--attention-backend", "triton")
VARIANTS = {
    "shape": {
        "base": TRITON,
        "base again": TRITON,
        "fused sum": (*TRITON, "--enable-fused-moe-sum-all-reduce"),
        "three experts of four": (
            *TRITON,
            *("--json-model-override-args", '{"num_experts_per_tok": 3, "experts_per_token": 3}'),
        ),
    },
    "tiny": {
        "base": TRITON,
        "base again": TRITON,
        "sums in another order": (*TRITON, "--triton-attention-num-kv-splits", "1", "--chunked-prefill-size", "64"),
        "one expert of two": (*TRITON, "--json-model-override-args", '{"num_experts_per_tok": 1}'),
    },
}
LOAD = Load(num_prompts=64, input_len=256, output_len=32, max_concurrency=16)


def write_model(name: str, folder: Path, layers: int) -> tuple[Path, tuple[str, ...]]:
    """Write the model and return its folder with the arguments that load it."""
    if name == "tiny":
        return write_tiny_model(folder, "tiny-qwen3-moe"), ()
    make_model.CONFIG |= {"num_hidden_layers": layers, "layer_types": make_model.CONFIG["layer_types"][:layers]}
    make_model.main(folder)
    return folder, ("--load-format", "dummy")


def observe(name: str, out: Path, layers: int) -> None:
    """Start all variants, ask and profile each, and keep what they say."""
    model, load_args = write_model(name, out / "model", layers)
    with ExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        servers = {}
        for variant, args in VARIANTS[name].items():
            launch = Launch(
                engine=ENGINES["sglang"],
                python=sys.executable,
                model=model,
                args=(*load_args, *COMMON, *args),
                env={},
                ready_timeout_s=170.0,
                stop_timeout_s=5.0,
            )
            log = out / f"{variant.replace(' ', '-')}.log"
            servers[variant] = stack.enter_context(Server(launch, log, reaper))
        for start, (variant, server) in enumerate(servers.items(), 1):
            try:
                server.wait_ready()
            except ServerError as error:
                print(f"{variant}: {error}", flush=True)
                continue
            print(f"{variant}: ready after {server.ready_s:.0f} s", flush=True)
            arm = Arm.BASE if variant.startswith("base") else Arm.CANDIDATE
            for again in (0, 100):
                body, question = ask(server, Equivalence())
                store_answers(out, body, Answers(arm=arm, block=1, start=start + again, question=question))
            profile_server(server, LOAD, out, Profile(arm=arm, block=1, start=start))


def tell(name: str, out: Path) -> None:
    """Write and print the table."""
    answers = {found.start: found for found in load_answers(out)}
    profiles = {found.start: found for found in load_profiles(out)}
    table = {}
    for start, variant in enumerate(VARIANTS[name], 1):
        if start not in profiles:
            continue
        problems = [found.problem for found in (answers[start], answers[start + 100]) if found.problem]
        drifts = [] if problems else [asdict(measure_drift(answers[1], answers[start + again])) for again in (0, 100)]
        trace = profiles[start].read()
        ranked = sorted(trace.spent.items(), key=lambda item: -item[1].time_us)
        steps = profiles[start].steps
        kernels = {kernel: {"us": spent.time_us / steps, "calls": spent.count / steps} for kernel, spent in ranked}
        table[variant] = {
            "problems": problems,
            "drifts": drifts,
            "kind": trace.kind,
            "us": trace.total_us / steps,
            "kernels": kernels,
        }
        for drift in drifts:
            print(
                f"{variant:24} mean {drift['mean']:.4%} worst {drift['worst']:.4%} spread {drift['spread_nats']:.3g} nats",
                end=" ",
            )
            print(f"max {drift['max_nats']:.3g} nats, agreement {drift['agreement']:.0%}, first {drift['first']}")
        print(f"{variant:24} {trace.kind}s {trace.total_us / steps:.1f} us a step", problems)
        for kernel, spent in ranked[:14]:
            print(f"    {spent.time_us / steps:9.2f} us {spent.count / steps:7.2f} calls  {kernel[:110]}")
    (out / "table.json").write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=VARIANTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    observe(given.model, given.out, given.layers)
    tell(given.model, given.out)
