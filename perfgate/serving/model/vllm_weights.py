"""vLLM plug-in: fill the parameters of a server whose model's config asks for routed weights, as SGLang's plug-in does.

vLLM calls the functions of its `vllm.general_plugins` in each process of a server. It has names of its own for gpt-oss's
parameters; under those of the published checkpoint each gets the values that it has in SGLang.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

from perfgate.serving.model.routed_weights import Place, UnknownParameterError, fill_routed

NAMES = (
    (".attn.", ".self_attn."),
    (".embedding.", ".embed_tokens."),
    (".experts.routed_experts.", ".experts."),
    (".w13_bias", ".w13_weight_bias"),
    (".w2_bias", ".w2_weight_bias"),
)
"""What vLLM calls parts of gpt-oss's parameters, and what a recipe calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A model of vLLM whose parameters have the names of a recipe."""

    model: Any

    @property
    def config(self) -> Any:
        """The model's config.json, as vLLM keeps it."""
        return self.model.config

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter by the recipe's name."""
        for name, parameter in self.model.named_parameters():
            yield rename(name), parameter


def rename(name: str) -> str:
    """A parameter's name in a recipe, by its name in vLLM."""
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours, 1)
    return name


def register() -> None:
    """Entry point `vllm.general_plugins`: fill a model where vLLM would draw its dummy weights."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader  # noqa: PLC0415 - exists in a server only

    original = DummyModelLoader.load_weights

    @wraps(original)
    def load_weights(loader: Any, model: Any, model_config: Any) -> None:
        if not fill_routed(Renamed(model=model), find_place):
            original(loader, model, model_config)

    DummyModelLoader.load_weights = load_weights


def find_place() -> Place:
    """That of the only process. Raise UnknownParameterError where a model is divided: its shards were never compared."""
    from vllm.distributed import get_pp_group, get_tensor_model_parallel_world_size  # noqa: PLC0415 - exists in a server only

    if (count := get_tensor_model_parallel_world_size() * get_pp_group().world_size) != 1:
        raise UnknownParameterError(f"perfgate draws weights for vLLM on one GPU, and this server has {count}")
    return Place()
