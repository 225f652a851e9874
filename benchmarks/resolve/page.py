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
# Lines that were looked up in SGLang's issues and pull requests, and what was found. Release notes name few defaults.
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
        "says so in its title: prefill graphs of this model are off by default with trtllm_mla attention",
    ),
    (
        "0.5.14 -> 0.5.15.post1",
        "`graph_prefill` of deepseek-v3 on h20 and h200: disabled",
        "32785",
        "describes the rule: the breakable backend, the default by then, is off with MLA attention",
    ),
    ("0.5.15.post1 -> 0.5.16", "`mm_feature_transport` is new, `cpu`", "30904", "added it with this default"),
    (
        "0.5.16 -> 0.5.17",
        "`mm_feature_transport` of all models: `cpu` to `cuda_ipc`",
        "33653",
        "says that #32541 chose it automatically, which was not intended for text-only models such as these",
    ),
    (
        "0.5.17 -> 0.5.18",
        "`moe_tiles` of qwen3-30b on h200: only another Triton version's",
        "7013",
        "made the lookup fall back to the table of another Triton version where its own is missing",
    ),
    (
        "0.5.17 -> 0.5.18",
        "`mm_feature_transport` of all models: `cuda_ipc` to `cpu`",
        "33653",
        "made that choice depend on the model: text-only models stay on the CPU",
    ),
    (
        "0.5.18 -> 0.5.19",
        "`hicache_storage_prefetch_retry_max_attempts` is new",
        "36227",
        "repeats a storage prefetch that missed",
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
        "0.5.22 -> 0.5.23",
        "`enable_fused_qk_norm_rope` of all models: off to none",
        "40190",
        "brings this kernel to XPU in September 2026; by 0.5.23's help the flag is on there and off elsewhere, as it was here",
    ),
    (
        "all",
        "deepseek-v3 on h200 finds only the table of Triton 3.5.1",
        "24562",
        "says that Triton 3.6.0 has none for it, and made 3.5.1 the fallback in place of 3.3.1",
    ),
)
NOT_FOUND = {"0.5.22 -> 0.5.23": "the graphs of prefills up to 8,192 tokens, and `enable_decoder_swa_bounded_replay`"}
"""Lines of pairs that were looked up without a result."""

LIMITS = f"""\
- perfgate read the releases from {FIRST} to {LAST} with one torch (2.13, CPU) and one transformers (5.12.1). Only the version
  texts of Triton and CUDA were those of the torch that each release pins. Kernel packages were empty modules, so the page shows
  no choices of their own, no autotuning and no version checks at a start.
- The pool is the engine's formula over simulated memory, with the weights of the layers as built. Memory for graphs and
  activations is what the static share leaves; memory for weights that loading lays out again is not included. Use the pool for
  comparisons only, not as an absolute number.
- `lost` means that something was given up, not that it is slower. A default may change for a good reason; `--accept` takes it.
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
    yield "`python -m benchmarks.resolve.page` writes this page from [results](../../benchmarks/resolve/results). It shows what"
    yield "the engine's own code chooses. No GPU was used, and only the time of `perfgate resolve` was measured."
    yield "[How to use it](../how-to/resolve.md)."
    yield from _write_pairs()
    yield from _write_tables()
    yield from _write_seeds()
    yield from _write_start()
    yield from _write_sampled()
    yield from _write_cost()
    yield from _write_limits()


def _write_pairs() -> Iterator[str]:
    yield from ("", "## Each release compared with the one before", "")
    yield f"{len(MODELS)} models ({', '.join(MODELS)}) on {', '.join(ON)}. The table counts lines; the list has each lost one."
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
    yield "All lines of each pair, with changed defaults:"
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
    yield from ("", f"## {RELEASES[-1]} with the Triton versions that its torch could install", "")
    kits = ", ".join(f"torch {torch} installs {kit.triton}" for torch, kit in TOOLKITS.items())
    yield f"A release has a folder of tuned tiles for each Triton version, and looks them up by that version: {kits}."
    yield "The file that each model opens on an H200 for the first product (`none`: the built-in tiles):"
    yield from ("", "| model | " + " | ".join((*TRITONS, "3.8.0, its own")) + " |", "|:--|" + ":--|" * (len(TRITONS) + 1))
    documents = [load(f"{RELEASES[-1]}-triton-{triton}")["tables"] for triton in TRITONS]
    columns = [document["base"] for document in documents] + [documents[-1]["candidate"]]
    for model in MODELS:
        cells = [column[f"{model}@h200"]["moe_tiles"] or "no Triton kernels" for column in columns]
        yield f"| {model} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield from ("", "What 3.8.0 loses compared with them, by `perfgate resolve` for all models and GPUs above:", "")
    for triton in TRITONS:
        lost = _list_lost(f"{RELEASES[-1]}-triton-{triton}") or ["nothing"]
        yield from (f"- compared with {triton}: {told}" for told in lost)
    yield from ("", "Files for an H200 in the release, by Triton version: " + _count_files() + ".")


def _count_files() -> str:
    counts = load("tables")
    return ", ".join(f"{triton}: {count}" for triton, count in counts.items())


def _write_seeds() -> Iterator[str]:
    yield from ("", f"## Seeded changes in {RELEASE}", "")
    yield f"One change at a time, {' and '.join(SHAPES)} on {', '.join(ON)}. A change is found if its line is the only one."
    yield from ("", "| change | found | line |", "|:--|:--|:--|")
    for name, row in load("seeds").items():
        lines = [line for line in row["lines"] if line.startswith(("lost  ", "changed  "))]
        is_found = "yes" if row["is_found"] else "**no**"
        yield f"| {name} | {is_found} | " + ("<br>".join(lines) or "no line").replace("|", "\\|") + " |"


def _write_start() -> Iterator[str]:
    start = load("start")
    yield from ("", "## Compared with a server on a real GPU", "")
    name, equal = Path(start["session"]).name, start["settings"] - len(start["differing"])
    yield f"Session [{name}](../../{start['session']}) has the settings that a server of 0.5.16 on an H200 reported."
    yield f"With the same command line, {equal} of {start['settings']} settings resolve to the same value here;"
    for name, (real, here) in start["differing"].items():
        yield f"`{name}` does not ({real} there, {here} here)."
    yield f"The layers as built hold {start['weights_gib']} GiB; loading them there took {start['weights_of_the_start_gb']} GB."
    yield "The estimate of the pool does not include what loading lays out again."


def _write_sampled() -> Iterator[str]:
    yield from ("", "## Lines looked up in SGLang's issues and pull requests", "")
    yield "A sample, chosen because public issues and pull requests of SGLang mention it; other lines were not looked up."
    yield from ("", "| pair | line | record |", "|:--|:--|:--|")
    for pair, line, number, words in SAMPLED:
        yield f"| {pair} | {line} | [#{number}]({UPSTREAM}{number}) {words} |"
    yield ""
    yield from (f"No record was found for these of {pair}: {lines}." for pair, lines in NOT_FOUND.items())


def _write_cost() -> Iterator[str]:
    yield from ("", "## What it costs", "")
    seeds = list(load("seeds").values())
    cpu = [row["cpu_s"] for row in seeds]
    runs = f"{len(seeds)} runs on {seeds[0]['cores']} cores"
    yield f"Two models on three GPUs, both arms: {min(cpu):.0f} to {max(cpu):.0f} s of CPU time in {runs}."
    walls = ", ".join(f"{row['wall_s']:.0f} s (load {row['load'][0]:.0f})" for row in seeds)
    yield f"Their wall time, beside other work on the machine: {walls}."
    seconds = load("seconds")
    cpu = [row["cpu_s"] for row in seconds.values()]
    yield f"One release with {len(MODELS)} models on {len(ON)} GPUs: {min(cpu):.0f} to {max(cpu):.0f} s of CPU time."


def _write_limits() -> Iterator[str]:
    yield from ("", "## Limits", "", *LIMITS.splitlines())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
