"""Patches of what a server does with its GPU: streams, graphs, tables of tiles, penalties and grammars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.museum.hooks import BROKEN, Hook, Variant, call_through

FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
BARRIER = "sglang.srt.managers.scheduler.Scheduler._apply_war_barrier"
PENALTY = "sglang.srt.sampling.penaltylib.min_new_tokens.BatchedMinNewTokensPenalizer._apply"
GRAPH = "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.can_run"
TABLE = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config.get_moe_configs"
MASK = "sglang.srt.constrained.xgrammar_backend.XGrammarGrammar.fill_vocab_mask"
MOVE = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.update_regex_vocab_mask"
STEP_BYTES = 12 * 1024 * 1024
"""What the report says is built and moved at each step."""


def wait_for_forward(variant: Variant) -> Sequence[Hook]:
    """The scheduler's stream waits for the whole forward pass before each step, or for the event that SGLang sets within it."""

    def wait(_original: Callable[..., Any], scheduler: Any) -> None:
        scheduler.schedule_stream.wait_stream(scheduler.forward_stream)

    return (Hook(target=BARRIER, around=wait if variant is BROKEN else call_through),)


def wait_after_launch(variant: Variant) -> Sequence[Hook]:
    """A step's launch returns only once the GPU has done the step, so that the scheduler's work overlaps with nothing."""

    def launch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        found = original(*args, **kwargs)
        torch.cuda.current_stream().synchronize()
        return found

    return (Hook(target=FORWARD, around=launch if variant is BROKEN else call_through),)


def penalise_by_mask(variant: Variant) -> Sequence[Hook]:
    """Rows below their least length are picked by a mask, for which the host waits for the GPU at each step."""

    def apply(_original: Callable[..., Any], penalizer: Any, logits: Any) -> None:
        short = (penalizer.len_output_tokens < penalizer.min_new_tokens).expand_as(logits)
        logits[short] += penalizer.stop_token_penalties[short]

    return (Hook(target=PENALTY, around=apply if variant is BROKEN else call_through),)


def look_graph_up(variant: Variant) -> Sequence[Hook]:
    """A captured graph is looked up by a bare size, and never found, or by the key that it was kept by."""

    def look_up(original: Callable[..., Any], backend: Any, batch: Any, key: Any) -> Any:
        from sglang.srt.model_executor.runner.shape_key import ShapeKey

        size = key.size if isinstance(key, ShapeKey) else key
        return original(backend, batch, size if variant is BROKEN else ShapeKey(size=size))

    return (Hook(target=GRAPH, around=look_up),)


def lose_table(variant: Variant) -> Sequence[Hook]:
    """No tuned table of tiles is found, so that the kernel falls back to its defaults."""

    def lose(_original: Callable[..., Any], *_args: Any, **_kwargs: Any) -> None:
        return None

    return (Hook(target=TABLE, around=lose if variant is BROKEN else call_through),)


def fill_mask_again(variant: Variant) -> Sequence[Hook]:
    """The mask of a grammar takes the longer the more tokens were accepted: it is filled once for each 32 of them."""

    def fill(original: Callable[..., Any], grammar: Any, mask: Any, row: int) -> Any:
        accepted = len(getattr(grammar, "accepted_tokens", ()))
        for _ in range(accepted // 32 if variant is BROKEN else 0):
            original(grammar, mask, row)
        return original(grammar, mask, row)

    return (Hook(target=MASK, around=fill),)


def copy_mask(variant: Variant) -> Sequence[Hook]:
    """Each step with a grammar builds a large table on the host and moves it to the GPU, waiting for it."""

    def move(original: Callable[..., Any], info: Any) -> Any:
        if variant is BROKEN and info.grammars:
            _move_table(info.device)
        return original(info)

    return (Hook(target=MOVE, around=move),)


def _move_table(device: Any) -> None:
    import torch

    table = torch.zeros(STEP_BYTES // 4, dtype=torch.int32)
    table.to(device)
