"""Write docs/evidence/resolve.md from the results: `python -m benchmarks.resolve.page`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.resolve.releases import ON, RELEASES, RESULTS, TRITONS
from benchmarks.resolve.seeds import RELEASE, SHAPES
from perfgate.resolution.report import describe_difference
from perfgate.resolution.table import FIRST, LAST, MODELS, TOOLKITS
from perfgate.resolution.values import Difference, Kind
from perfgate.storage.schema import adapt

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "resolve.md"
UPSTREAM = "https://github.com/sgl-project/sglang/pull/"
# Lines that were looked for in SGLang's public record, and what stands there. Release notes themselves name few defaults.
SAMPLED = (
    (
        "0.5.13 -> 0.5.14",
        "`mamba_scheduler_strategy` is gone, `mamba_radix_cache_strategy` is new",
        "27418",
        "proposes this renaming in June 2026; it is closed",
    ),
    (
        "0.5.14 -> 0.5.15.post1",
        "`graph_prefill` of deepseek-v3 on b200: disabled",
        "28053",
        "is titled so: prefill graphs of this model off by default where attention is trtllm_mla",
    ),
    (
        "0.5.14 -> 0.5.15.post1",
        "`graph_prefill` of deepseek-v3 on h20 and h200: disabled",
        "32785",
        "tells of the rule: the breakable backend, the default by then, is off with MLA attention",
    ),
    ("0.5.15.post1 -> 0.5.16", "`mm_feature_transport` is new, `cpu`", "30904", "added it with this default"),
    (
        "0.5.16 -> 0.5.17",
        "`mm_feature_transport` of all models: `cpu` to `cuda_ipc`",
        "33653",
        "says that #32541 chose it by itself, against its intent for models of text alone, as these are",
    ),
    (
        "0.5.17 -> 0.5.18",
        "`moe_tiles` of qwen3-30b on h200: only another Triton's",
        "7013",
        "made the lookup fall back to another Triton's table where its own is missing",
    ),
    (
        "0.5.17 -> 0.5.18",
        "`mm_feature_transport` of all models: `cuda_ipc` to `cpu`",
        "33653",
        "made that choice depend on the model: text alone stays on the CPU",
    ),
    (
        "0.5.18 -> 0.5.19",
        "`hicache_storage_prefetch_retry_max_attempts` is new",
        "36227",
        "made a storage prefetch that missed be tried again",
    ),
    (
        "0.5.19 -> 0.5.20",
        "`hicache_storage_prefetch_retry_max_attempts`: 4 to 8",
        "39283",
        "names 8 as its default",
    ),
    ("0.5.20 -> 0.5.21", "`hicache_host_memory_fraction` is new, 0.8", "40135", "added it with this default"),
    (
        "0.5.21 -> 0.5.22",
        "`watermark_context_window` and `watermark_mixing_probability` are new",
        "37577",
        "proposes them in September 2026; it was open in the copy that was read",
    ),
    (
        "all",
        "deepseek-v3 on h200 finds only the table of Triton 3.5.1",
        "24562",
        "says that Triton 3.6.0 has none for it, and made 3.5.1 the fallback in place of 3.3.1",
    ),
)
NOT_FOUND = {"0.5.22 -> 0.5.23": "the graphs of prefills up to 8,192 tokens, and `enable_fused_qk_norm_rope`"}
"""Lines of pairs that were looked for and of which no record was found."""

LIMITS = f"""\
- Releases from {FIRST} to {LAST} were read beside one torch (2.13, CPU) and one transformers (5.12.1), with the version of
  Triton and the CUDA of the torch that each pins, in its text alone. Kernel packages were empty modules: what they choose by
  themselves, autotuning and checks of their versions at a start are not in it.
- The pool is the engine's formula over made-up memory, with weights of the layers as built: graphs and activations are what the
  static share leaves, and what loading lays out anew is not in it. Compare it, do not count on it.
- `lost` says that something was given up, not that it is slower: a default may move for a good reason, which is asked for.
"""


def load(name: str) -> Any:
    """One file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def render() -> str:
    """The page."""
    return "\n".join(_write()) + "\n"


def _write() -> Iterator[str]:
    yield "# What releases of SGLang choose"
    yield ""
    yield "Written by `python -m benchmarks.resolve.page` from [results](../../benchmarks/resolve/results). No GPU was used and"
    yield "nothing was measured but the time it took: this is what the engine's own code says."
    yield "[How to use it](../how-to/resolve.md)."
    yield from _write_pairs()
    yield from _write_tables()
    yield from _write_seeds()
    yield from _write_start()
    yield from _write_sampled()
    yield from _write_cost()
    yield from _write_limits()


def _write_pairs() -> Iterator[str]:
    yield from ("", "## Each release against the one before", "")
    yield f"{len(MODELS)} models ({', '.join(MODELS)}) on {', '.join(ON)}. Lines of each kind, and the lost ones in full."
    yield from ("", "| from | to | lost | changed | unverified |", "|:--|:--|--:|--:|--:|")
    pairs = list(pairwise(RELEASES))
    for base, candidate in pairs:
        kinds = [one["kind"] for one in load(f"{base}-{candidate}")["differences"]]
        unverified = len(load(f"{base}-{candidate}")["unverified"])
        yield f"| {base} | {candidate} | {kinds.count('lost')} | {kinds.count('changed')} | {unverified} |"
    yield ""
    for base, candidate in pairs:
        yield from (f"- {base} -> {candidate}: {told}" for told in _list_lost(f"{base}-{candidate}"))
    yield ""
    yield "All lines of a pair, changes of defaults among them:"
    for base, candidate in pairs:
        yield from ("", f"<details><summary>{base} -> {candidate}</summary>", "", "```", *load(f"{base}-{candidate}")["lines"])
        yield from ("```", "", "</details>")


def _list_lost(name: str) -> list[str]:
    """What was lost from one side of a comparison to the other."""
    document = load(name)
    asked = tuple((model, gpu) for model, gpu in document["cases"])
    found = (adapt(Difference).validate_python(one) for one in document["differences"])
    return [describe_difference(one, asked) for one in found if one.kind is Kind.LOST]


def _write_tables() -> Iterator[str]:
    yield from ("", f"## {RELEASES[-1]} under the Tritons that its torch could bring", "")
    kits = ", ".join(f"torch {torch} brings {kit.triton}" for torch, kit in TOOLKITS.items())
    yield f"A release's tables of tuned tiles lie in a folder a Triton, and the lookup goes by Triton's version: {kits}."
    yield "Which file is opened on an H200 for the first product, model by model (`none`: the built-in tiles):"
    yield from ("", "| model | " + " | ".join((*TRITONS, "3.8.0, its own")) + " |", "|:--|" + ":--|" * (len(TRITONS) + 1))
    documents = [load(f"{RELEASES[-1]}-triton-{triton}")["tables"] for triton in TRITONS]
    columns = [document["base"] for document in documents] + [documents[-1]["candidate"]]
    for model in MODELS:
        cells = [column[f"{model}@h200"]["moe_tiles"] or "no Triton kernels" for column in columns]
        yield f"| {model} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield from ("", "What 3.8.0 loses against them, as `perfgate resolve` says it for all models and GPUs above:", "")
    for triton in TRITONS:
        yield from (f"- against {triton}: {told}" for told in _list_lost(f"{RELEASES[-1]}-triton-{triton}") or ["nothing"])
    yield from ("", "Files for an H200 in the release, by Triton: " + _count_files() + ".")


def _count_files() -> str:
    counts = load("tables")
    return ", ".join(f"{triton}: {count}" for triton, count in counts.items())


def _write_seeds() -> Iterator[str]:
    yield from ("", f"## Seeded trees of {RELEASE}", "")
    yield f"One change at a time, {' and '.join(SHAPES)} on {', '.join(ON)}; a seed is found if it is the only line."
    yield from ("", "| seed | found | what was said |", "|:--|:--|:--|")
    for name, row in load("seeds").items():
        lines = [line for line in row["lines"] if line.startswith(("lost  ", "changed  "))]
        is_found = "yes" if row["is_found"] else "**no**"
        yield f"| {name} | {is_found} | " + ("<br>".join(lines) or "not one line").replace("|", "\\|") + " |"


def _write_start() -> Iterator[str]:
    start = load("start")
    yield from ("", "## Against a start on a real card", "")
    name, equal = Path(start["session"]).name, start["settings"] - len(start["differing"])
    yield f"Session [{name}](../../{start['session']}) keeps what a server of 0.5.16 on an H200 said of itself."
    yield f"The same command line, resolved here: of {start['settings']} settings {equal} are equal,"
    for name, (real, here) in start["differing"].items():
        yield f"`{name}` is not ({real} there, {here} here)."
    yield f"The layers as built hold {start['weights_gib']} GiB; loading them there took {start['weights_of_the_start_gb']} GB:"
    yield "what is laid out anew after loading is not in the estimate of the pool."


def _write_sampled() -> Iterator[str]:
    yield from ("", "## Lines looked up in SGLang's record", "")
    yield "A sample, chosen because the engine's public issues and pull requests tell of it; other lines were not looked up."
    yield from ("", "| pair | line | record |", "|:--|:--|:--|")
    for pair, line, number, words in SAMPLED:
        yield f"| {pair} | {line} | [#{number}]({UPSTREAM}{number}) {words} |"
    yield ""
    yield from (f"Of {pair} these were looked for, and no record was found: {lines}." for pair, lines in NOT_FOUND.items())


def _write_cost() -> Iterator[str]:
    yield from ("", "## What it took", "")
    seeds = list(load("seeds").values())
    cpu = [row["cpu_s"] for row in seeds]
    runs = f"{len(seeds)} runs on {seeds[0]['cores']} cores"
    yield f"Two models on three GPUs, both arms: {min(cpu):.0f} to {max(cpu):.0f} s of CPU in {runs},"
    walls = ", ".join(f"{row['wall_s']:.0f} s (load {row['load'][0]:.0f})" for row in seeds)
    yield f"by the clock, beside other work on the machine: {walls}."
    seconds = load("seconds")
    cpu = [row["cpu_s"] for row in seconds.values()]
    yield f"One release with {len(MODELS)} models on {len(ON)} GPUs: {min(cpu):.0f} to {max(cpu):.0f} s of CPU."


def _write_limits() -> Iterator[str]:
    yield from ("", "## What this does not say", "", *LIMITS.splitlines())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
