"""Where a model lies on this machine: in its folder, generated here, or in the cache of the Hugging Face hub.

Nothing is downloaded. The layout is the hub's own: `models--ORG--NAME/refs/main` names a commit, whose files are
`snapshots/COMMIT`, links into `blobs`. It is read here, so that the judging Python needs no package of the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from perfgate.errors import InputError
from perfgate.scenario.schema import Model
from perfgate.serving.model.generated_model import GENERATED, write_model
from perfgate.serving.progress import Progress
from perfgate.storage.state import find_state_dir

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


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
        progress.step(f"generating {name} with drawn weights in {folder}")
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
