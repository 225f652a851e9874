"""Where a model lies on this machine: in its folder, generated here, or in the cache of the Hugging Face hub.

Generated are tiny models, as checkpoints, and large ones, as shapes whose weights the server draws.

Nothing is downloaded. The layout is the hub's own: `models--ORG--NAME/refs/main` names a commit, whose files are
`snapshots/COMMIT`, links into `blobs`. It is read here, so that the judging Python needs no package of the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from perfgate.errors import InputError
from perfgate.scenario.schema import Model
from perfgate.serving.model.routed_shapes import SHAPES, Choice, is_shape, write_shape
from perfgate.serving.model.tiny_model import ROUTED_ENDING, write_tiny, write_tiny_model
from perfgate.serving.model.tiny_routed import route
from perfgate.serving.model.tiny_shapes import MODELS
from perfgate.serving.progress import Progress
from perfgate.storage.state import find_state_dir

GENERATED = "generated:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

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


def locate_model(model: Model, given: Path | None, progress: Progress) -> Path:
    """Return the model's folder: the one given, else the scenario's, generated first where the scenario says so.

    A hub id is looked up in the cache of this machine. Raise InputError when it is not there.
    """
    if given is not None:
        return given
    if not model.path.startswith(GENERATED):
        return find_snapshot(model.path, find_cache()) if is_hub_id(model.path) else Path(model.path)
    name = model.path.removeprefix(GENERATED)
    folder = find_state_dir() / "models" / name
    if not folder.exists():
        progress.step(f"generating {name} with random weights in {folder}")
    return write_model(folder, name)


def is_hub_id(path: str) -> bool:
    """Whether a scenario's `path` is ORG/NAME of the hub, and nothing of that name lies here."""
    return _HUB_ID.fullmatch(path) is not None and not Path(path).exists()


def find_cache(variables: Mapping[str, str] = os.environ) -> Path:
    """The folder in which the hub's tools keep what they downloaded, by the variables that they read, in their order."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if place := variables.get(name):
            return Path(place).expanduser()
    for name, below in (("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")):
        if place := variables.get(name):
            return Path(place).expanduser() / below
    return Path("~/.cache/huggingface/hub").expanduser()


def find_snapshot(hub_id: str, cache: Path) -> Path:
    """The folder of the downloaded branch `main`. Raise InputError, with what to do, when there is none with a config."""
    place = cache / f"models--{hub_id.replace('/', '--')}"
    try:
        commit = (place / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = ""
    folder = place / "snapshots" / commit
    if not commit or not (folder / "config.json").is_file():
        raise InputError(
            f"model.path: {hub_id}: no such folder, and {cache} holds no snapshot of it with a config.json; "
            f"run `hf download {hub_id}` or give --model FOLDER"
        )
    return folder
