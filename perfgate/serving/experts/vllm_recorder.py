"""Plug-in of vLLM: write down which experts a layer's tokens choose, as `expert_recorder` does it in SGLang.

One hook stands around the method in which vLLM's runner of a MoE layer lets its router choose, or hands the logits of it to a
kernel that chooses by itself. A second one keeps passes from replaying CUDA graphs while the file asks: the custom operation
around the layer runs in Python in any other pass. Both were read in 0.26.0 and 0.32.0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfgate.serving.experts.expert_recorder import VARIABLE, Recorder

RUNNER = "vllm.model_executor.layers.fused_moe.runner.moe_runner"
GRAPHS = "vllm.v1.cudagraph_dispatcher"
PLAIN = ("Default", "Renormalize", "RenormalizeNaive", "TopK", "Llama4", "Sigmoid", "SigmoidRenorm")
"""What vLLM calls routings that take the experts of the largest logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of one process of a server."""

    recorder: Recorder

    def choose(self, original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `MoERunner._apply_quant_method`: write what the router chooses for these tokens."""
        import torch  # noqa: PLC0415 - loaded in a server anyway

        # What is traced is compiled: a CPU's layers are, unless it runs eagerly.
        if not torch.compiler.is_compiling() and (layer := self.recorder.see(runner)) is not None:
            ids = read_choice(runner, kwargs)
            if ids is not None:
                experts = int(kwargs["router_logits"].shape[-1])
                is_placed = bool(runner.moe_config.moe_parallel_config.enable_eplb)
                self.recorder.write(layer, experts, ids.detach().cpu(), is_placed=is_placed)
        return original(runner, *args, **kwargs)

    def dispatch(self, original: Callable[..., Any], dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `CudagraphDispatcher.dispatch`: no graph is replayed while the recorder is switched on."""
        self.recorder.ask()
        if self.recorder.is_on:
            from vllm.config import CUDAGraphMode  # noqa: PLC0415 - exists in a server only

            kwargs["valid_modes"] = {CUDAGraphMode.NONE}
        return original(dispatcher, *args, **kwargs)


def read_choice(runner: Any, asked: dict[str, Any]) -> Any | None:
    """The ids that a layer's router chooses [tokens, top_k]; None where its kernel chooses in a way that is not known here."""
    if not runner.is_monolithic:
        names = ("hidden_states", "router_logits", "input_ids")
        _, ids = runner.router.select_experts(**{name: asked[name] for name in names if name in asked})
        return ids
    if runner.router.routing_method_type.name not in PLAIN:
        return None
    return asked["router_logits"].float().topk(runner.moe_config.experts_per_token, dim=-1).indices


def _surround(owner: type, name: str, hook: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(owner, name, surrounded)


def register() -> None:
    """Entry point `vllm.general_plugins`: hook the server if, and only if, the environment names a folder."""
    folder = os.environ.get(VARIABLE)
    if not folder or find_spec(RUNNER.rpartition(".")[0]) is None:
        return
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner  # noqa: PLC0415 - exists in a server only
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher  # noqa: PLC0415

    hooks = Hooks(recorder=Recorder(folder=Path(folder)))
    _surround(MoERunner, "_apply_quant_method", hooks.choose)
    _surround(CudagraphDispatcher, "dispatch", hooks.dispatch)
