"""The patches of exhibits, in our own words and code: each puts the mechanism of one report into a running SGLang.

SGLang's plug-in hook applies them, as it does perfgate's injections. `PERFGATE_MUSEUM=NAME:VARIANT` asks for one, in the
variant `broken` or `fixed`, and for several with commas between. Each says in the server's log that it runs, at its first call,
and the gate asks for that line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.museum import device_patches, host_patches, placement
from benchmarks.museum.hooks import Hook, Variant

VARIABLE = "PERFGATE_MUSEUM"
LAUNCH = "sglang.srt.entrypoints.http_server.launch_server"

PATCHES: Mapping[str, Callable[[Variant], Sequence[Hook]]] = {
    "admission-frozen": host_patches.admit_smaller,
    "detokenizer-vocabulary": host_patches.check_tokens,
    "detokenizer-window": host_patches.keep_window,
    "eviction-heap": host_patches.evict_lazily,
    "eviction-walk": host_patches.evict_by_walk,
    "experts-uneven": placement.place_experts,
    "grammar-growth": device_patches.fill_mask_again,
    "grammar-copy": device_patches.copy_mask,
    "graph-lookup-misses": device_patches.look_graph_up,
    "host-leak": host_patches.keep_requests,
    "min-tokens-sync": device_patches.penalise_by_mask,
    "overlap-barrier": device_patches.wait_for_forward,
    "overlap-lost": device_patches.wait_after_launch,
    "sampling-deepcopy": host_patches.copy_requests,
    "scheduler-log": host_patches.format_queue,
    "slow-import": host_patches.import_much,
    "tile-table-lost": device_patches.lose_table,
    "token-counts": host_patches.count_tokens,
    "tokenizer-vocabulary": host_patches.count_vocabulary,
}
"""By the name of the exhibit, whose gate may take a flag instead: a search of its history needs a patch."""


def parse_wanted(text: str) -> tuple[tuple[str, Variant], ...]:
    """Read `NAME:VARIANT`, several with commas between. Raise ValueError saying what is accepted."""
    return tuple(_parse_one(one) for one in text.split(","))


def _parse_one(text: str) -> tuple[str, Variant]:
    name, _, variant = text.partition(":")
    if name not in PATCHES or variant not in list(Variant):
        raise ValueError(f"{VARIABLE}={text!r}: give NAME:broken or NAME:fixed with one of {', '.join(PATCHES)}")
    return name, Variant(variant)


def describe_proof(name: str, variant: str) -> str:
    """The line of a server's log by which a patch is known to run."""
    return f"perfgate museum runs {name}:{variant}"


def register() -> None:
    """Entry point `sglang.srt.plugins`: hook the server if, and only if, the environment asks for it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    try:
        wanted = parse_wanted(text)
    except ValueError as error:
        # SystemExit, because SGLang logs any Exception of a plug-in and serves without it.
        raise SystemExit(f"perfgate museum: {error}") from error
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, variant in wanted:
        for hook in PATCHES[name](variant):
            HookRegistry.register(hook.target, hook.announce(describe_proof(name, variant)), HookType.AROUND)
    # SGLang starts its detokenizer without plug-ins.
    HookRegistry.register(LAUNCH, launch_with_plug_ins, HookType.AROUND)


def launch_with_plug_ins(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND hook of SGLang's launch: the detokenizer is started through `detokenize_with_plug_ins`."""
    return original(*args, **{**kwargs, "run_detokenizer_process_func": detokenize_with_plug_ins})


def detokenize_with_plug_ins(*args: Any, **kwargs: Any) -> Any:
    """What the detokenizer's process runs."""
    from sglang.srt.managers.detokenizer_manager import run_detokenizer_process
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return run_detokenizer_process(*args, **kwargs)
