"""An example under the help of every command: lines that can be pasted, and that a test runs."""

from __future__ import annotations

from textwrap import wrap

import click

WIDTH = 74
_GITHUB_INIT = (
    "perfgate github init --repository OWNER/NAME --commit $COMMIT --hardware h20 --scenario gpt-oss-20b-shape-mxfp4-mixed-c16"
)

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("perfgate demo",),
    "ab": ("perfgate ab cpu-moe --env OMP_NUM_THREADS=2",),
    "baseline": ("perfgate baseline list",),
    "baseline add": ("perfgate baseline add perfgate-demo/pass --to baselines",),
    "baseline diff": ("perfgate baseline diff old.json new.json",),
    "baseline expire": ("perfgate baseline expire baseline.json --older-than 90",),
    "baseline list": ("perfgate baseline list",),
    "baseline show": ("perfgate baseline show baseline.json",),
    "baseline verify": ("perfgate baseline verify baseline.json",),
    "bisect": ("perfgate bisect v0.5.15 main --scenario cpu-moe --repo ../sglang --budget 60 --out search",),
    "calibrate": ("perfgate calibrate cpu-moe --blocks 20",),
    "check": ("perfgate check perfgate-demo/regression", "perfgate check perfgate-demo/regression --format json"),
    "compare": (
        "perfgate compare before.jsonl after.jsonl",
        "perfgate compare --base before_*.jsonl --candidate after_*.jsonl",
        "perfgate compare perfgate-demo/pass perfgate-demo/inconclusive",
    ),
    "completion": ("perfgate completion bash",),
    "demo": ("perfgate demo", "perfgate demo invalid", "perfgate demo regression --live"),
    "deps": (
        "perfgate deps base.lock candidate.lock --scenario cpu-moe --budget 60 --out search",
        "perfgate deps main change --after results --scenario cpu-moe --budget 60 --out search",
        "perfgate deps base.lock candidate.lock --command '{python} measure.py' --budget 5 --out search",
    ),
    "doctor": ("perfgate doctor",),
    "engine": ("perfgate engine show",),
    "engine bump": ("perfgate engine bump --environments engines --record benchmarks/engines/results",),
    "engine install": ("perfgate engine install", "perfgate engine install 0.5.23 engines/0.5.23"),
    "engine show": ("perfgate engine show",),
    "engine table": ("perfgate engine table benchmarks/engines/results",),
    "engine try": ("perfgate engine try", "perfgate engine try engines/0.5.23/bin/python --out trial"),
    "explain": ("perfgate explain perfgate-demo/regression", "perfgate explain perfgate-demo/regression p99_itl_ms"),
    "export": (
        "perfgate export perfgate-demo/regression --csv windows.csv",
        "perfgate export perfgate-demo/regression --csv -",
    ),
    "gate": ("perfgate gate", "perfgate gate cpu-moe --candidate-checkout ../sglang"),
    "github": (_GITHUB_INIT,),
    "github admit": ("perfgate github admit --pr 7 --head-sha $HEAD_SHA --ref refs/heads/main",),
    "github answer": (
        "perfgate github answer --pr 7 --head-sha $HEAD_SHA --base-sha $BASE_SHA --task compare --matrix $MATRIX",
    ),
    "github command": ("perfgate github command --event event.json",),
    "github init": (_GITHUB_INIT,),
    "github jobs": ("perfgate github jobs",),
    "github learn": ("perfgate github learn --matrix $MATRIX --artifacts artifacts --to baselines --head-sha $HEAD_SHA",),
    "github plan": ("perfgate github plan --event event.json --event-name pull_request",),
    "github publish": ("perfgate github publish --pr 7 --head-sha $HEAD_SHA --matrix $MATRIX --pages report",),
    "github report": ("perfgate github report --event event.json --pages report",),
    "github umbrella": ("perfgate github umbrella --lessons lessons.json --head-sha $HEAD_SHA",),
    "github verdict": (
        (
            "perfgate github verdict --pr 7 --head-sha $HEAD_SHA --base-sha $BASE_SHA --action run --result success "
            "--matrix $MATRIX --artifacts artifacts"
        ),
    ),
    "handoff": ("perfgate handoff pack results --output handoff --pr 7 --head-sha $HEAD_SHA --hardware h20",),
    "handoff choices": ("perfgate handoff choices choices.json",),
    "handoff open": ("perfgate handoff open handoff.zip --out opened --pr 7 --head-sha $HEAD_SHA --hardware h20",),
    "handoff pack": ("perfgate handoff pack results --output handoff --pr 7 --head-sha $HEAD_SHA --hardware h20",),
    "history": ("perfgate history append perfgate-demo/regression --store history",),
    "history append": ("perfgate history append perfgate-demo/regression --store history",),
    "history compact": ("perfgate history compact --store history",),
    "history import": ("perfgate history import before.jsonl --store history --hardware h200",),
    "history override": ("perfgate history override 3f2a --store history --by NAME --reason 'a neighbour compiled'",),
    "history show": ("perfgate history show --store history",),
    "kernels": ("perfgate kernels check --impl sglang --matrix quick --device cuda",),
    "kernels build": ("perfgate kernels build --arch sm_90 --wheels wheels",),
    "kernels check": (
        "perfgate kernels check --impl sglang --matrix quick --device cuda",
        "perfgate kernels check --impl my_module:my_layer --matrix quick --page page.html",
    ),
    "kernels list": ("perfgate kernels list",),
    "kernels plug-in": ("perfgate kernels plug-in build/plug-in",),
    "kernels prove": ("perfgate kernels prove --checkout ../sglang --base-checkout ../sglang-main --output proof.json",),
    "kernels tune": ("perfgate kernels tune --shape gpt-oss-20b --tokens 1,16,256",),
    "ledger": ("perfgate ledger show benchmarks/engines/ledger",),
    "ledger add": (
        "perfgate ledger add sglang==0.5.23 --environments engines --to benchmarks/engines/ledger",
        "perfgate ledger add sglang==0.5.23 --session results --to benchmarks/engines/ledger",
    ),
    "ledger show": ("perfgate ledger show benchmarks/engines/ledger",),
    "list": ("perfgate list", "perfgate list perfgate-demo"),
    "matrix": ("perfgate matrix gpt-oss-20b-shape-backends --out backends",),
    "model": ("perfgate model make tiny-qwen3-moe build/tiny",),
    "model make": ("perfgate model make tiny-qwen3-moe build/tiny",),
    "model verify": ("perfgate model verify build/tiny --scenario cpu-moe",),
    "pack": ("perfgate pack perfgate-results/cpu-moe-20261122-120000",),
    "plan": (
        "perfgate plan --changed python/sglang/srt/managers/scheduler.py --minutes 20",
        "perfgate plan --model cpu --changed - < changed.txt",
    ),
    "power": (
        "perfgate power --baseline perfgate/baselines/nvidia-h200-141gb/gpt-oss-20b-shape-mxfp4-mixed-c16.json --effect 0.03",
        "perfgate power --design --from perfgate-demo/pass --effect 0.03",
    ),
    "profile": ("perfgate profile benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled",),
    "report": (
        "perfgate report perfgate-demo/regression --html page.html",
        "perfgate report perfgate-demo/regression --output comment.md",
    ),
    "resolve": (
        "perfgate resolve --base 0.5.22 --candidate 0.5.23",
        "perfgate resolve --base 0.5.23 --base-triton 3.6.0 --candidate 0.5.23 --model qwen3-30b --gpu h200",
    ),
    "run": ("perfgate run cpu-moe --candidate-env OMP_NUM_THREADS=2 --blocks 4",),
    "runner": ("perfgate runner doctor",),
    "runner arm": (
        "perfgate runner arm head/python arms/head",
        "perfgate runner arm head/python arms/head --trees head base",
    ),
    "runner cache": ("perfgate runner cache verify --key by-hand",),
    "runner cache harvest": ("perfgate runner cache harvest --slot 0",),
    "runner cache key": ("perfgate runner cache key",),
    "runner cache lend": ("perfgate runner cache lend caches/base",),
    "runner cache offer": ("perfgate runner cache offer caches/base",),
    "runner cache prune": ("perfgate runner cache prune --keep 3",),
    "runner cache seed": ("perfgate runner cache seed ~/.triton/cache --key by-hand",),
    "runner cache verify": ("perfgate runner cache verify --key by-hand",),
    "runner clean": ("perfgate runner clean",),
    "runner doctor": ("perfgate runner doctor --expect h20", "perfgate runner doctor --deep"),
    "runner hook": ("perfgate runner hook started",),
    "runner hook completed": ("perfgate runner hook completed",),
    "runner hook started": ("perfgate runner hook started",),
    "runner init-host": ("perfgate runner init-host --repository OWNER/NAME --clock-mhz 1500 --dry-run",),
    "runner ledger": ("perfgate runner ledger show --days 7",),
    "runner ledger add": ("perfgate runner ledger add --slot 0",),
    "runner ledger show": ("perfgate runner ledger show --days 7",),
    "runner lock": ("perfgate runner lock --gpus 1 -- perfgate run cpu-moe",),
    "runner prepare": ("perfgate runner prepare --slot 0",),
    "runner register": ("perfgate runner register --slot 0",),
    "runner run-once": ("perfgate runner run-once --slot 0",),
    "runner scrub": ("perfgate runner scrub --slot 0 --processes",),
    "runner status": ("perfgate runner status", "perfgate runner status --prometheus"),
    "scenarios": ("perfgate scenarios",),
    "scenarios new": ("perfgate scenarios new mine.toml --like cpu-moe",),
    "scenarios show": ("perfgate scenarios show cpu-moe",),
    "scheduler": (
        "perfgate scheduler --base 0.5.23 --candidate ../sglang",
        "perfgate scheduler --base base/bin/python --candidate head/bin/python --format json",
    ),
    "schema": ("perfgate schema",),
    "show": ("perfgate show before.jsonl", "perfgate show before.jsonl after.jsonl", "perfgate show - < before.jsonl"),
}
"""By the words of a command, or of a group of them. In a job GitHub sets the repository, the run and its number."""


def add_examples(command: click.Command, name: str) -> click.Command:
    """Write the examples of `name` under its help, and those of a group's commands under theirs."""
    if name in EXAMPLES:
        title = "Examples" if len(EXAMPLES[name]) > 1 else "Example"
        command.epilog = "\n".join(["\b", f"{title}:", *map(_fold, EXAMPLES[name])])
    if isinstance(command, click.Group):
        for inner, found in command.commands.items():
            add_examples(found, f"{name} {inner}")
    return command


def _fold(line: str) -> str:
    """A line for a terminal of 80 columns; what is longer goes on, for the shell as well."""
    return " \\\n".join(wrap(line, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False))
