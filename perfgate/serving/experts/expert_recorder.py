"""Plug-in of SGLang: write down which experts a layer's tokens choose, for as long as a file asks for it.

`PERFGATE_EXPERTS` names a folder. The hook stands around `TopK.forward`, the one place where SGLang turns router logits into
expert ids whatever kernel computes the experts. It runs where Python runs: in a pass that is no replay of a CUDA graph. A
replay does not come here, so a measured decode step on a GPU pays nothing; elsewhere a call costs a comparison of two clocks'
readings, and every HOLD_S seconds the question whether the file `on` is there. While it is, a second hook keeps prefill from
replaying graphs, so that the tokens asked for come by.

While it is, one JSON line a layer and forward pass goes to `experts.jsonl`: `{"layer", "experts", "top_k", "ids"}`, `ids` being
base64 of little-endian unsigned 16-bit numbers, one row of `top_k` a token. Ranks of one server choose alike: the first writes.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VARIABLE = "PERFGATE_EXPERTS"
TOP_K = "sglang.srt.layers.moe.topk.TopK.forward"
REPLAY = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.can_run_graph"
HOOKED, ON, RECORD = "hooked", "on", "experts.jsonl"
HOLD_S = 0.5
"""How long an answer to "is it switched on?" is believed."""


@dataclass(slots=True)
class Recorder:
    """What was seen, and whether it is to be written: each layer that routes is numbered in the order of the first calls."""

    folder: Path
    is_on: bool = False
    _asked_s: float = -HOLD_S
    _layers: dict[int, int] = field(default_factory=dict)

    def hook(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """AROUND hook of SGLang's `TopK.forward`."""
        import torch  # noqa: PLC0415 - loaded in a server anyway

        result = original(*args, **kwargs)
        # Traced code is compiled without the hook: what it does is not to become part of a graph.
        if not torch.compiler.is_compiling() and (layer := self.see(args[0])) is not None:
            logits = kwargs["router_logits"] if "router_logits" in kwargs else args[2]
            is_placed = kwargs.get("expert_location_dispatch_info") is not None
            self.write(layer, int(logits.shape[-1]), read_ids(args[0], logits, result), is_placed=is_placed)
        return result

    def keep_eager(self, original: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
        """AROUND hook of what decides whether a prefill of SGLang replays a graph: it does not while this is switched on.

        Each rank of a server says so, since passes of one kind belong together.
        """
        self.ask()
        return not self.is_on and original(*args, **kwargs)

    def see(self, module: Any) -> int | None:
        """Number a layer that routes now; None where what it chooses is not to be written."""
        if not self._layers and _find_rank() == 0:
            (self.folder / HOOKED).touch()
        layer = self._layers.setdefault(id(module), len(self._layers))
        if layer == 0:
            self.ask()
        return layer if self.is_on and _find_rank() == 0 and not _is_captured() else None

    def ask(self) -> None:
        """Look whether this is switched on, where the last look was HOLD_S seconds ago."""
        now = time.monotonic()
        if now - self._asked_s >= HOLD_S:
            self._asked_s = now
            self.is_on = (self.folder / ON).exists()

    def write(self, layer: int, experts: int, ids: Any, *, is_placed: bool) -> None:
        """Write what a pass of one layer chose: `ids` is a tensor on the CPU, a row a token."""
        line = {
            "layer": layer,
            "experts": experts,
            "top_k": int(ids.shape[-1]),
            "placed": is_placed,
            "ids": base64.b64encode(ids.numpy().astype("<u2").tobytes()).decode(),
        }
        with (self.folder / RECORD).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_ids(module: Any, logits: Any, result: Any) -> Any:
    """The ids of the routed experts, a row a token, as a tensor on the CPU.

    The output has them in SGLang's standard and packed forms. The form of `triton_kernels` is sorted by expert, and the
    bypassed one leaves the choice to the kernel: there the experts of the largest logits are meant, as both compute it.
    """
    ids = getattr(result, "topk_ids", None)
    if ids is None and (packed := getattr(result, "packed_topk_ids", None)) is not None:
        ids = packed >> 16
    if ids is None and hasattr(result, "to_standard"):
        ids = result.to_standard(module.layer_id).topk_ids
    config = module.topk_config
    # Shared experts that are fused with the routed ones stand behind them and serve every token.
    routed = config.top_k - getattr(config, "num_fused_shared_experts", 0)
    if ids is None:
        ids = logits.float().topk(routed, dim=-1).indices
    return ids[:, :routed].detach().cpu()


def _is_captured() -> bool:
    import torch  # noqa: PLC0415

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _find_rank() -> int:
    import torch  # noqa: PLC0415

    group = torch.distributed
    return group.get_rank() if group.is_available() and group.is_initialized() else 0


def register() -> None:
    """Entry point `sglang.srt.plugins`: hook the server if, and only if, the environment names a folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - exists in a server only

    recorder = Recorder(folder=Path(folder))
    HookRegistry.register(TOP_K, recorder.hook, HookType.AROUND)
    if find_spec(REPLAY.rsplit(".", 2)[0]) is not None:
        HookRegistry.register(REPLAY, recorder.keep_eager, HookType.AROUND)
