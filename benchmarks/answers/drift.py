"""How far answers drift between builds that are right and builds that are wrong, and what they run: on one machine.

    python benchmarks/answers/drift.py MODEL OUT [--layers N]

MODEL is `cpu` (the generated Qwen3-MoE on the CPU), or on a GPU `tiny` (the same), `scaled` (two layers of gpt-oss-20b's
widths; the weights of these have the scale of trained ones) or `shape` (gpt-oss-20b cut to N layers, with the engine's dummy
weights). The last two need benchmarks/h200/serving and benchmarks/kernels on PYTHONPATH. All servers live at the same time,
which answers need not mind. OUT gets answers, traces and logs as a result folder has them, and `table.json`: each variant's
drift from the first base, and its kernels or operators per forward step.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.errors import ServerError
from perfgate.evidence import Answers
from perfgate.results.answers import load_answers, store_answers
from perfgate.results.profiling.profiles import Profile, load_profiles
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.load import Load
from perfgate.scenario.safeguards import Equivalence
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import ask
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.serving.profiling import profile_server
from perfgate.verdict.validity.equivalence import compare_starts

GPU = (
    *("--moe-runner-backend", "triton", "--attention-backend", "triton"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--disable-prefill-cuda-graph", "--cuda-graph-max-bs-decode", "32", "--max-total-tokens", "32768"),
    *("--mem-fraction-static", "0.9"),
)
OVERRIDE = "--json-model-override-args"
FEWER = (OVERRIDE, '{"num_experts_per_tok": 1}')
UNNORMALISED = (OVERRIDE, '{"norm_topk_prob": false}')
# The first is what all are compared with; every server is asked twice.
VARIANTS = {
    "cpu": {
        "base": (),
        "base again": (),
        "float32": ("--dtype", "float32"),
        "chunked prefill": ("--chunked-prefill-size", "32"),
        "wrong: norm epsilon 1e-2": (OVERRIDE, '{"rms_norm_eps": 0.01}'),
        "wrong: weights of experts not normalised": UNNORMALISED,
        "wrong: one expert of two": FEWER,
    },
    "tiny": {
        "base": (),
        "base again": (),
        "sums in another order": ("--triton-attention-num-kv-splits", "1", "--chunked-prefill-size", "64"),
        "wrong: weights of experts not normalised": UNNORMALISED,
        "wrong: one expert of two": FEWER,
    },
}
VARIANTS["scaled"] = VARIANTS["shape"] = {
    "base": (),
    "base again": (),
    "fused sum": ("--enable-fused-moe-sum-all-reduce",),
    "wrong: three experts of four": (OVERRIDE, '{"num_experts_per_tok": 3, "experts_per_token": 3}'),
}
LOAD = Load(num_prompts=64, input_len=256, output_len=32, max_concurrency=16)


def write_model(name: str, folder: Path, layers: int) -> tuple[Path, tuple[str, ...]]:
    """Write the model and return its folder with the arguments of every server."""
    if name == "cpu":
        return write_tiny_model(folder, "tiny-qwen3-moe"), load_scenario("cpu-moe").server.args
    if name == "tiny":
        return write_tiny_model(folder, "tiny-qwen3-moe"), GPU
    if name == "scaled":
        import scaled_model

        scaled_model.main(folder)
        return folder, GPU
    import make_model

    make_model.CONFIG |= {"num_hidden_layers": layers, "layer_types": make_model.CONFIG["layer_types"][:layers]}
    make_model.main(folder)
    return folder, ("--load-format", "dummy", *GPU)


def observe(name: str, out: Path, layers: int) -> None:
    """Start all variants, ask and profile each, and keep what they say."""
    model, args = write_model(name, out / "model", layers)
    with ExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        servers = {}
        for start, (variant, own) in enumerate(VARIANTS[name].items(), 1):
            launch = Launch(
                engine=ENGINES["sglang-cpu" if name == "cpu" else "sglang"],
                python=sys.executable,
                model=model,
                args=(*args, *own),
                env={"OMP_NUM_THREADS": "1"} if name == "cpu" else {},
                ready_timeout_s=400.0 if name == "cpu" else 170.0,
                stop_timeout_s=5.0,
            )
            servers[variant] = stack.enter_context(Server(launch, out / f"server-{start:02d}.log", reaper))
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
        drifts = [] if problems else [asdict(compare_starts(answers[1], answers[start + again])) for again in (0, 100)]
        trace = profiles[start].read()
        steps = profiles[start].steps
        ranked = sorted(trace.spent.items(), key=lambda item: -item[1].time_us)
        spent = {kernel: {"us": one.time_us / steps, "calls": one.count / steps} for kernel, one in ranked}
        table[variant] = {
            "args": VARIANTS[name][variant],
            "problems": problems,
            "drifts": drifts,
            "kind": trace.kind,
            "us": trace.total_us / steps,
            "spent": spent,
        }
        for drift in drifts:
            print(
                f"{variant:40} mean {drift['mean']:.4%} worst {drift['worst']:.4%} spread {drift['spread_nats']:.3g} nats",
                end=" ",
            )
            print(f"max {drift['max_nats']:.3g} nats, agreement {drift['agreement']:.0%}, first {drift['first']}")
        print(f"{variant:40} {trace.kind}s {trace.total_us / steps:.1f} us a step", *problems)
        for kernel, one in list(spent.items())[:14]:
            print(f"    {one['us']:9.2f} us {one['calls']:7.2f} calls  {kernel[:110]}")
    (out / "table.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=VARIANTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    observe(given.model, given.out, given.layers)
    tell(given.model, given.out)
