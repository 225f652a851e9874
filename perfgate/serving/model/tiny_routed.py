"""Tiny models whose weights are drawn by a recipe, and their collapsed twins, in which every token has the same experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfgate.errors import InputError
from perfgate.serving.model.routed_recipe import (
    DEFAULT_SEED,
    Recipe,
    Sizes,
    assign_collapse,
    assign_popularity,
    build_recipe,
    draw_key,
    find_role,
    list_word_factors,
    write_recipe,
)
from perfgate.serving.model.tiny_shapes import (
    EXPERT_WIDTH,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    SPECIAL,
    TOP_K,
    Tensor,
    TinyModel,
)

# With 2 of 8 experts the most popular one cannot get twice the mean load.
TINY_IMBALANCE = 1.5
# The embedding's first value where a router without a bias is to choose the same experts for every token.
CONSTANT_VALUE = 30.0


def route(model: TinyModel, *, seed: int = DEFAULT_SEED, imbalance: float | None = None, collapsed: bool = False) -> TinyModel:
    """The same shape with weights by a recipe. `collapsed` makes every token of a layer choose the same experts, for tests.

    Raise InputError for an imbalance that the router cannot have.
    """
    sizes = Sizes(
        layers=LAYERS,
        hidden=HIDDEN,
        experts=EXPERTS,
        top_k=TOP_K,
        expert_width=EXPERT_WIDTH,
        attention_width=HEADS * HEAD_DIM,
        is_clamped=model.config["model_type"] == "gpt_oss",
    )
    recipe = build_recipe(
        sizes,
        seed=seed,
        imbalance=TINY_IMBALANCE if imbalance is None else imbalance,
        never_generated=tuple(range(len(SPECIAL))),
        collapsed=collapsed,
    )
    tensors = {name: _draw_by(recipe, name, tensor) for name, tensor in model.tensors.items()}
    return replace(model, config={**model.config, **write_recipe(recipe)}, tensors=_collapse(tensors, recipe), seed=seed)


def _draw_by(recipe: Recipe, name: str, tensor: Tensor) -> Tensor:
    role = find_role(name)
    if role is None:
        raise InputError(f"{name}: no recipe says how it is drawn")
    spread = recipe.spreads[role]
    if role in {"norm", "qk_norm"}:
        return Tensor(shape=tensor.shape, spread=0.0, mean=spread)
    rows: tuple[float, ...] = ()
    if role == "router":
        rows = tuple(assign_popularity(recipe, name))
    elif role == "head":
        factors = list_word_factors()
        rows = tuple(factors[draw_key(recipe.seed, name, word) % 256] for word in range(tensor.shape[0]))
    return Tensor(shape=tensor.shape, spread=spread, rows=rows)


def _collapse(tensors: Mapping[str, Tensor], recipe: Recipe) -> Mapping[str, Tensor]:
    """Let a bias decide for the router or, where it has none, a value that all embeddings have in common."""
    if not recipe.collapsed:
        return tensors
    found = dict(tensors)
    biases = [name for name in found if find_role(name) == "router_bias"]
    for name in biases:
        bias = assign_collapse(recipe, name.rpartition(".")[0], TOP_K)
        found[name] = replace(found[name], spread=0.0, mean=1.0, rows=tuple(bias))
    for name in () if biases else tuple(found):
        if find_role(name) == "router":
            preference = assign_collapse(recipe, name.rpartition(".")[0], TOP_K)
            found[name] = replace(found[name], first_column=tuple(preference))
        elif find_role(name) == "embedding":
            words = found[name].shape[0]
            found[name] = replace(found[name], first_column=(CONSTANT_VALUE,) * words)
    return found
