"""Is the model that a server will really serve the one that the scenario names? Its arguments may change it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfgate.engines.arguments import read_option
from perfgate.engines.table import ENGINES
from perfgate.errors import InputError, ModelError, ServerError
from perfgate.scenario import schema as scenario
from perfgate.serving.engine.server import Server
from perfgate.serving.engine.startup import find_line
from perfgate.serving.model.model_guard import ModelFacts, find_config, list_differences, read_config, read_model_facts
from perfgate.serving.model.routed_recipe import describe_marker, read_recipe

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
NO_WEIGHTS = "none"
# Files of many gigabytes are told apart by their names, sizes and ends; another training run changes every byte between.
END_BYTES = 2**20

_PATH_OPTIONS = tuple(dict.fromkeys(engine.model_option for engine in ENGINES.values()))
_OVERRIDES = tuple(dict.fromkeys(engine.overrides_option for engine in ENGINES.values()))
_LOAD_FORMAT, _QUANTIZATION = "--load-format", "--quantization"


def verify_served(name: str, args: Sequence[str], folder: Path, expected: scenario.Model) -> ModelFacts:
    """Check what the server of the arm `name`, started with `args`, makes of the model in `folder`.

    Raise ModelError naming every field that differs from the scenario's, InputError for arguments that cannot be read.
    """
    other = read_option(args, *_PATH_OPTIONS)
    if other is not None:
        raise ModelError(f"{name}: its arguments serve {other} instead of {folder}; give the model with --model, to both arms")
    config = {**read_config(folder), **_read_overrides(name, args)}
    facts = read_model_facts(config, f"{name}: {find_config(folder)} with its arguments")
    facts = _apply(facts, args)
    differences = [*list_differences(facts, expected), *_check_weights(facts, args, folder, expected)]
    if differences:
        raise ModelError(
            f"{name}: with its arguments it serves not the scenario's model: {'; '.join(differences)}; serve {expected.path}"
        )
    return facts


def _read_overrides(name: str, args: Sequence[str]) -> Mapping[str, object]:
    merged: dict[str, object] = {}
    for option in _OVERRIDES:
        text = read_option(args, option)
        try:
            overrides = json.loads(text) if text else {}
        except json.JSONDecodeError as error:
            raise InputError(f"{name}: {option} {text}: not valid JSON ({error})") from None
        if not isinstance(overrides, dict):
            raise InputError(f"{name}: {option} {text}: must be a JSON object")
        merged |= overrides
    return merged


def _apply(facts: ModelFacts, args: Sequence[str]) -> ModelFacts:
    """What the engine does to the numbers while it loads them."""
    quantization = read_option(args, _QUANTIZATION) or facts.quantization
    # A routed model's own recipe fills what a dummy load leaves; that it did is asked of the server's log.
    is_dummy = is_drawn_by_server(args) and facts.weights != "routed"
    return replace(facts, quantization=quantization, weights="random" if is_dummy else facts.weights)


def is_drawn_by_server(args: Sequence[str]) -> bool:
    """Whether a server with these arguments reads no weights, but draws them."""
    return read_option(args, _LOAD_FORMAT) == "dummy"


def require_routed(server: Server) -> None:
    """Hold a server that is ready against the line that perfgate's plug-in writes once it has filled a model.

    Raise ServerError where the config asks for routed weights, the server drew its own, and the line is missing. A server that
    read a checkpoint needs no such line.
    """
    launch = server.launch
    if not is_drawn_by_server(launch.args):
        return
    try:
        recipe = read_recipe(read_config(launch.model), str(find_config(launch.model)))
    except InputError as error:
        raise ServerError(str(error)) from error
    if recipe is None or find_line(server.log, describe_marker(recipe)) is not None:
        return
    raise ServerError(
        f"the model asks for routed weights, and the server's log has no line {describe_marker(recipe)!r}: every token may "
        f"have visited the same experts; is this perfgate installed in {launch.python}? Where it is only on PYTHONPATH, "
        "`perfgate kernels plug-in FOLDER` writes what lets SGLang find it"
    )


def _check_weights(facts: ModelFacts, args: Sequence[str], folder: Path, expected: scenario.Model) -> Iterator[str]:
    """Weights from a checkpoint have to be there, and to be those that the scenario pins."""
    if facts.weights == "random" or is_drawn_by_server(args):
        return
    found = digest_weights(folder)
    if found == NO_WEIGHTS and facts.weights == "routed":
        yield f"{folder} holds no weights and {_LOAD_FORMAT} is not dummy (add it to server.args)"
    elif found == NO_WEIGHTS and expected.weights == "checkpoint":
        yield f"{folder} holds no weights ({', '.join(WEIGHTS)})"
    elif expected.weights_digest not in (None, found):
        yield f"weights_digest is {found}, the scenario wants {expected.weights_digest}"


def digest_weights(folder: Path) -> str:
    """Twelve hex digits over the weight files' names, sizes, first and last MiB; "none" where there is none.

    Raise InputError for one that cannot be read: a link whose file is gone, as a cache that was half emptied leaves it.
    """
    files = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern)) if folder.is_dir() else []
    if not files:
        return NO_WEIGHTS
    total = hashlib.sha256()
    for path in files:
        try:
            total.update(_read_ends(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); fetch or make the model again") from None
    return total.hexdigest()[:12]


def _read_ends(path: Path) -> bytes:
    """A file's name and size, its first and its last MiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(END_BYTES)
        file.seek(max(END_BYTES, size - END_BYTES))
        return f"{path.name}\0{size}\0".encode() + head + file.read()


def describe_model(folder: Path, expected: scenario.Model) -> dict[str, str]:
    """What a session writes down of its model: where it lay, and digests by which another copy is known to be the same."""
    config = json.dumps(read_config(folder), sort_keys=True).encode()
    return {
        "path": str(folder),
        "weights": expected.weights,
        "config_digest": hashlib.sha256(config).hexdigest()[:12],
        "weights_digest": digest_weights(folder),
    }
