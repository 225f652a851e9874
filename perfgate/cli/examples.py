"""An example under the help of every command: lines that can be pasted, and that a test runs."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "ab": ("perfgate ab cpu-moe --env OMP_NUM_THREADS=2",),
    "baseline add": ("perfgate baseline add perfgate-demo/pass --to baselines",),
    "baseline diff": ("perfgate baseline diff old.json new.json",),
    "baseline expire": ("perfgate baseline expire baseline.json --older-than 90",),
    "baseline list": ("perfgate baseline list",),
    "baseline show": ("perfgate baseline show baseline.json",),
    "baseline verify": ("perfgate baseline verify baseline.json",),
    "bisect": ("perfgate bisect v0.5.15 main --scenario cpu-moe --repo ../sglang --budget 60 --out search",),
    "calibrate": ("perfgate calibrate cpu-moe --blocks 8",),
    "check": ("perfgate check perfgate-demo/regression", "perfgate check perfgate-demo/regression --format json"),
    "compare": (
        "perfgate compare before.jsonl after.jsonl",
        "perfgate compare --base before_*.jsonl --candidate after_*.jsonl",
        "perfgate compare perfgate-demo/pass perfgate-demo/inconclusive",
    ),
    "completion": ("perfgate completion bash",),
    "demo": ("perfgate demo", "perfgate demo invalid", "perfgate demo regression --live"),
    "doctor": ("perfgate doctor",),
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
    "history append": ("perfgate history append perfgate-demo/regression --store history",),
    "history compact": ("perfgate history compact --store history",),
    "history import": ("perfgate history import before.jsonl --store history --hardware h200",),
    "history override": ("perfgate history override 3f2a --store history --by NAME --reason 'a neighbour compiled'",),
    "history show": ("perfgate history show --store history",),
    "ledger add": ("perfgate ledger add sglang==0.5.23 --environments engines --to benchmarks/engines/ledger",),
    "ledger show": ("perfgate ledger show benchmarks/engines/ledger",),
    "list": ("perfgate list", "perfgate list perfgate-demo"),
    "matrix": ("perfgate matrix gpt-oss-20b-backends --out backends",),
    "model make": ("perfgate model make tiny-qwen3-moe build/tiny",),
    "model verify": ("perfgate model verify build/tiny --scenario cpu-moe",),
    "pack": ("perfgate pack perfgate-results/cpu-moe-20261122-120000",),
    "power": ("perfgate power --scenario benchmarks/h200/serving/closed-c16.toml --effect 0.03",),
    "profile": ("perfgate profile perfgate-demo/regression",),
    "report": (
        "perfgate report perfgate-demo/regression --html page.html",
        "perfgate report perfgate-demo/regression --output comment.md",
    ),
    "run": ("perfgate run cpu-moe --candidate-env OMP_NUM_THREADS=2 --blocks 4",),
    "scenarios": ("perfgate scenarios", "perfgate scenarios show cpu-moe", "perfgate scenarios new mine.toml --like cpu-moe"),
    "schema": ("perfgate schema",),
    "show": ("perfgate show before.jsonl", "perfgate show before.jsonl after.jsonl", "perfgate show - < before.jsonl"),
}
"""By the words of a command; commands of the group CI plumbing are shown where workflows call them."""


def add_examples(command: click.Command, name: str) -> click.Command:
    """Write the examples of `name` under its help, and those of a group's commands under theirs."""
    if name in EXAMPLES:
        title = "Examples" if len(EXAMPLES[name]) > 1 else "Example"
        command.epilog = "\n".join(["\b", f"{title}:", *(f"  {line}" for line in EXAMPLES[name])])
    if isinstance(command, click.Group):
        for inner, found in command.commands.items():
            add_examples(found, f"{name} {inner}")
    return command
