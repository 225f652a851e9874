"""Models that perfgate makes by itself: tiny ones as checkpoints, large ones as shapes whose weights the server draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from perfgate.errors import InputError
from perfgate.serving.model.routed_shapes import SHAPES, Choice, is_shape, write_shape
from perfgate.serving.model.tiny_model import ROUTED_ENDING, write_tiny, write_tiny_model
from perfgate.serving.model.tiny_routed import route
from perfgate.serving.model.tiny_shapes import MODELS

GENERATED = "generated:"

Drawn = Literal["random", "routed"]


def list_names() -> tuple[str, ...]:
    """The names that can be made; a large one may end in a format, a tiny one in `-routed`."""
    return (*sorted(MODELS), *SHAPES)


def write_model(folder: Path, name: str) -> Path:
    """Write the model `name` (with or without `generated:`) into `folder`, as it comes, and return the folder.

    Raise InputError for an unknown name and for a folder that holds another model.
    """
    plain = name.removeprefix(GENERATED)
    if is_shape(plain):
        return write_shape(folder, plain)
    if plain.removesuffix(ROUTED_ENDING) not in MODELS:
        raise InputError(f"model {plain!r}: perfgate generates only {', '.join(list_names())}")
    return write_tiny_model(folder, plain)


def write_chosen(folder: Path, name: str, weights: Drawn | None, choice: Choice) -> Path:
    """Write the model `name` with what was chosen of it: the weights, the format, the layers, the seed, the imbalance.

    Raise InputError for a choice that the model does not have.
    """
    if is_shape(name):
        if weights == "random":
            raise InputError(f"model {name!r}: it has no plain random weights; leave out --weights, or say --weights routed")
        return write_shape(folder, name, choice)
    if weights != "routed" and not name.endswith(ROUTED_ENDING):
        if choice != Choice():
            raise InputError(f"model {name!r}: --dtype, --seed, --layers and --imbalance need --weights routed")
        return write_model(folder, name)
    if weights == "random":
        raise InputError(f"model {name!r}: its name says routed, --weights says random; leave one of them out")
    base = name.removesuffix(ROUTED_ENDING)
    if base not in MODELS:
        return write_model(folder, name)
    if replace(choice, seed=Choice().seed, imbalance=None) != Choice():
        raise InputError(f"model {name!r}: a tiny model has its own layers and format; leave out --layers and --dtype")
    return write_tiny(folder, route(MODELS[base], seed=choice.seed, imbalance=choice.imbalance))
