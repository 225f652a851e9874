"""How far answers drift between builds that are right and builds that are wrong, and what they run: on one machine.

    python benchmarks/answers/drift.py MODEL --out OUT [--caches DIR]

MODEL is `cpu` (the generated Qwen3-MoE on the CPU), or on a GPU `tiny` (the same), `scaled` (two layers of gpt-oss-20b's
widths; the weights of these have the scale of trained ones; needs the repository on PYTHONPATH) or `routed` (all of
gpt-oss-20b's shape in MXFP4, with weights that route, as the shipped scenario serves it). Some servers live at the same time,
which answers need not mind. OUT gets answers, traces (but of `routed`, which are too large) and logs as a result folder has
them, and `table.json`: each variant's drift from the first base, and its kernels or operators per forward step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.errors import ServerError
from perfgate.evidence import Answers
from perfgate.results.answers import load_answers, store_answers
from perfgate.results.profiling.profiles import Profile, load_profiles
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.load import Load
from perfgate.scenario.safeguards import Equivalence
from perfgate.serving.engine.arms import list_caches
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import ask
from perfgate.serving.model.location import write_model as write_shipped
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
VARIANTS["scaled"] = {
    "base": (),
    "base again": (),
    "fused sum": ("--enable-fused-moe-sum-all-reduce",),
    "wrong: three experts of four": (OVERRIDE, '{"num_experts_per_tok": 3, "experts_per_token": 3}'),
}
FAULTS = {
    "wrong: second layer skipped": "skip_gpt_oss_layer",
    "wrong: one of each token's four experts left out": "drop_sorted_expert",
    "wrong: expert weights of three bits": "round_mxfp4",
}
"""What `tests/faults/plug-in` breaks in a variant's server."""
VARIANTS["routed"] = {"base": (), "base again": (), **dict.fromkeys(FAULTS, ())}
PLUG_IN = Path(__file__).parents[2] / "tests" / "faults" / "plug-in"
ROUTED = "gpt-oss-20b-shape-mxfp4-mixed-c16"
AT_ONCE = 3
"""Servers that live at the same time: `routed` takes 18 GB of a GPU for each."""
LONGEST = 14
"""Kernels or operators of a step that the table keeps."""
LOAD = Load(num_prompts=64, input_len=256, output_len=32, max_concurrency=16)


def write_model(name: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write the model and return its folder with the arguments of every server."""
    if name == "cpu":
        return write_tiny_model(folder, "tiny-qwen3-moe"), load_scenario("cpu-moe").server.args
    if name == "tiny":
        return write_tiny_model(folder, "tiny-qwen3-moe"), GPU
    if name == "scaled":
        from benchmarks.answers import scaled_model

        scaled_model.main(folder)
        return folder, GPU
    scenario = load_scenario(ROUTED)
    return write_shipped(folder, scenario.model.path), (*scenario.server.args, "--max-total-tokens", "16384")


def build_environment(name: str, variant: str, caches: Path | None) -> dict[str, str]:
    """Variables of a variant's server: one thread on the CPU, the fault that its plug-in reads, and compile caches."""
    env = {"OMP_NUM_THREADS": "1"} if name == "cpu" else list_caches(caches)
    if variant in FAULTS:
        paths = [str(PLUG_IN), *filter(None, [os.environ.get("PYTHONPATH")])]
        env |= {"SEEDED_FAULT": FAULTS[variant], "PYTHONPATH": os.pathsep.join(paths)}
    return env


def observe(name: str, out: Path, caches: Path | None) -> None:
    """Start all variants, ask and profile each, and keep what they say."""
    with TemporaryDirectory() as folder:
        launches = list(build_launches(name, *write_model(name, Path(folder) / "model"), caches).items())
        for first in range(0, len(launches), AT_ONCE):
            observe_some(name, dict(launches[first : first + AT_ONCE]), out)


def build_launches(name: str, model: Path, args: tuple[str, ...], caches: Path | None) -> dict[int, Launch]:
    """What starts each variant's server, by the variant's number."""
    return {
        number: Launch(
            engine=ENGINES["sglang-cpu" if name == "cpu" else "sglang"],
            python=sys.executable,
            model=model,
            args=(*args, *own),
            env=build_environment(name, variant, caches),
            ready_timeout_s=400.0,
            stop_timeout_s=5.0,
        )
        for number, (variant, own) in enumerate(VARIANTS[name].items(), 1)
    }


def observe_some(name: str, launches: dict[int, Launch], out: Path) -> None:
    """Start servers, each by its variant's number, ask and profile each, and end them."""
    variants = tuple(VARIANTS[name])
    with ExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        servers = {
            start: stack.enter_context(Server(launch, out / f"server-{start:02d}.log", reaper))
            for start, launch in launches.items()
        }
        for start, server in servers.items():
            variant = variants[start - 1]
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
            if name != "routed":
                profile_server(server, LOAD, out, Profile(arm=arm, block=1, start=start))


def tell(name: str, out: Path) -> None:
    """Write and print the table."""
    answers = {found.start: found for found in load_answers(out)}
    profiles = {found.start: found for found in load_profiles(out)}
    table = {}
    for start, variant in enumerate(VARIANTS[name], 1):
        asked = (start, start + 100)
        if answers.keys() >= {1, *asked}:
            problems = [found.problem for number in asked if (found := answers[number]).problem]
        else:
            problems = ["its server, or the base's, did not answer twice"]
        drifts = [] if problems else [asdict(compare_starts(answers[1], answers[number])) for number in asked]
        table[variant] = {"args": VARIANTS[name][variant], "problems": problems, "drifts": drifts}
        print(f"{variant:50}", *problems)
        for drift in drifts:
            print(
                f"    mean {drift['mean']:.4%} worst {drift['worst']:.4%} spread {drift['spread_nats']:.3g} nats",
                f"agreement {drift['agreement']:.0%}, first {drift['first']}",
            )
        if start in profiles:
            table[variant] |= tabulate_profile(profiles[start])
    (out / "table.json").write_text(json.dumps(table, indent=1) + "\n")


def tabulate_profile(profile: Profile) -> dict[str, Any]:
    """What a profiled forward step ran longest; printed, too."""
    trace = profile.read()
    ranked = sorted(trace.spent.items(), key=lambda item: -item[1].time_us)[:LONGEST]
    spent = {kernel: {"us": one.time_us / profile.steps, "calls": one.count / profile.steps} for kernel, one in ranked}
    print(f"    {trace.kind}s {trace.total_us / profile.steps:.1f} us a step")
    for kernel, one in spent.items():
        print(f"    {one['us']:9.2f} us {one['calls']:7.2f} calls  {kernel[:110]}")
    return {"kind": trace.kind, "us": trace.total_us / profile.steps, "spent": spent}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=VARIANTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--caches", type=Path, help="a folder of compile caches, with `base` in it")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    observe(given.model, given.out, given.caches and given.caches / "base")
    tell(given.model, given.out)
