"""Where experts lie: a patch that moves a loaded model's experts between the GPUs that divide them, and changes no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.museum.hooks import BROKEN, Hook, Variant

LOAD = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
ROUTERS = ("router", "gate")
Gather = Callable[[Any], Any]
"""Takes one rank's experts and returns those of all ranks, along the first axis."""


def place_experts(variant: Variant) -> Sequence[Hook]:
    """The most popular experts of each layer lie on the first GPU, or are dealt to the GPUs in turn.

    SGLang counts and reports an expert by the id that the router gave it, before it looks for the place.
    """

    def load(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        from sglang.srt.distributed import get_moe_ep_group

        found = original(runner, *args, **kwargs)
        group = get_moe_ep_group()
        for layer, router in find_layers(runner.model):
            norms = router.weight.float().norm(dim=1).tolist()
            move_experts(layer, order_experts(norms, layer.moe_ep_size, variant), lambda part: group.all_gather(part, dim=0))
        return found

    return (Hook(target=LOAD, around=load),)


def order_experts(popularity: Sequence[float], ranks: int, variant: Variant) -> list[int]:
    """Every expert, rank after rank. A router's row of larger norm is chosen more often: its norm stands for popularity.

    `broken` fills one rank after the other with the most popular experts that are left; `fixed` deals them out, back and forth.
    """
    falling = sorted(range(len(popularity)), key=lambda expert: (-popularity[expert], expert))
    if variant is BROKEN:
        return falling
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(falling), ranks):
        dealt = falling[start : start + ranks]
        for hand, expert in zip(hands, dealt if start // ranks % 2 == 0 else reversed(dealt), strict=True):
            hand.append(expert)
    return [expert for hand in hands for expert in hand]


def find_layers(model: Any) -> Iterator[tuple[Any, Any]]:
    """The layers of experts with the routers beside them. Raise RuntimeError where there is none to move."""
    modules = dict(model.named_modules())
    layers = [name for name, module in modules.items() if hasattr(module, "dispatcher") and hasattr(module, "moe_ep_rank")]
    if not layers:
        raise RuntimeError("perfgate museum: this model has no layer whose experts could be placed")
    for name in layers:
        parent = name.rpartition(".")[0]
        [router] = [modules[f"{parent}.{word}"] for word in ROUTERS if f"{parent}.{word}" in modules]
        yield modules[name], router


def move_experts(layer: Any, order: Sequence[int], gather: Gather) -> None:
    """Let this rank hold its part of `order`, and its dispatcher look there for them."""
    import torch

    count = layer.num_local_experts
    own = list(order[layer.moe_ep_rank * count : (layer.moe_ep_rank + 1) * count])
    for values in layer.parameters(recurse=False):
        if values.ndim and len(values) == count:
            values.data.copy_(gather(values.data)[own])
    places = torch.full((len(order),), -1, dtype=torch.int32, device=values.device)
    places[own] = torch.arange(count, dtype=torch.int32, device=values.device)
    layer.dispatcher.local_expert_mapping = places
