"""Answers one request: a process for each GPU imports the engine there once, and forks one for each model.

Standard input has one JSON object: `gpus`, `requires` (of the release; empty where the environment's own metadata say it),
`toolkits` by version of torch, `triton` in place of what the toolkit brings, and `stand_ins` by distribution. A GPU has
`models`, each with a `name`, the `folder` of its config.json, its `module` and `architecture` in the engine, `tp` and `args`,
further words of the command line. The first line of the answer tells of the environment, each other one of a model on a GPU.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import readings, seam


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Import what the engine stands on, and find out what its release asks for; says what runs here."""
    # What others import stays as it is here: it asks for packages by itself.
    for name in ("torch", "triton", "transformers", "xgrammar"):
        import_module(name)
    getattr(import_module("transformers"), "AutoProcessor", None)  # loaded when it is asked for
    pins = read_pins(request["requires"] or requires("sglang") or [])
    toolkit, unknown = choose_toolkit(pins.get("torch", ""), request)
    modules = {name: pins[package] for package, names in request["stand_ins"].items() if package in pins for name in names}
    absent = {name: pin for name, pin in modules.items() if is_absent(name)}
    told = {"sglang": read_version("sglang"), "torch": pins.get("torch", ""), "triton": toolkit["triton"]}
    return {"toolkit": toolkit, "unknown": unknown, "absent": absent, "told": told | {"stand_ins": sorted(absent)}}


def is_absent(name: str) -> bool:
    """Whether a package of kernels is not here. All of them are folders; a single file is the stand-in for serving on a CPU."""
    found = find_spec(name)
    return found is None or found.submodule_search_locations is None


def read_pins(lines: list[str]) -> dict[str, str]:
    """The version that each required package is pinned to, by its normalised name; empty where it is not pinned."""
    pins = {}
    for line in lines:
        if "extra ==" in line:
            continue
        found = re.match(r"([\w.-]+)(?:\[[^]]*\])?(?:==([\w.+!]+))?", line)
        if found:
            pins[re.sub(r"[-_.]+", "-", found[1]).lower()] = found[2] or ""
    return pins


def choose_toolkit(torch_pin: str, request: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Triton and CUDA of the torch that the release pins, and why they are not known; empty where they are.

    An environment that has that very torch says it by itself.
    """
    torch, triton = import_module("torch"), import_module("triton")
    known = dict(list(request["toolkits"].values())[-1])
    if request["triton"]:
        return known | {"triton": request["triton"]}, ""
    if torch_pin in request["toolkits"]:
        return request["toolkits"][torch_pin], ""
    here = {"triton": triton.__version__, "cuda": torch.version.cuda or known["cuda"]}
    if torch_pin == torch.__version__.partition("+")[0]:
        return here, ""
    return here, f"the release asks for {f'torch {torch_pin}' if torch_pin else 'no one torch'}, whose Triton is not known"


def read_version(package: str) -> str:
    """The version of a distribution, or `absent`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def run_apart(function: Callable[..., list[Any]], *given: Any) -> list[Any]:
    """What a function yields in a process of its own, since the engine keeps what it resolved; empty where it dies."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(function(*given)))
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return] # what the function yields
    except EOFError:
        return []
    finally:
        process.join()


def read_gpu(gpu: dict[str, Any], prepared: dict[str, Any]) -> list[dict[str, Any]]:
    """Every model on one GPU."""
    seam.fake_device(gpu, prepared["toolkit"])
    seam.stand_in(prepared["absent"])
    try:
        import_module("sglang.srt.server_args")
        for name in sorted({model["module"] for model in gpu["models"]}):
            import_module(f"sglang.srt.models.{name}")
    except Exception as error:  # noqa: BLE001 - foreign code: said in one line, of all models
        traceback.print_exc()
        why = {"import": readings.describe(error)}
        return [name_model(model, gpu) | {"flags": {}, "choices": {}, "unverified": why} for model in gpu["models"]]
    return [
        one
        for model in gpu["models"]
        for one in run_apart(read_model, model, gpu, prepared["unknown"]) or [tell_dead(model, gpu)]
    ]


def read_model(model: dict[str, Any], gpu: dict[str, Any], unknown: str) -> list[dict[str, Any]]:
    """One model's reading; `unknown` says why its Triton is, empty where it is not."""
    try:
        return [name_model(model, gpu) | readings.read(model, Path(model["folder"]), unknown)]
    except Exception as error:  # noqa: BLE001 - foreign code: said in one line
        traceback.print_exc()
        return [name_model(model, gpu) | {"flags": {}, "choices": {}, "unverified": {"arguments": readings.describe(error)}}]


def name_model(model: dict[str, Any], gpu: dict[str, Any]) -> dict[str, Any]:
    """What an answer is about."""
    return {"model": model["name"], "gpu": gpu["id"]}


def tell_dead(model: dict[str, Any], gpu: dict[str, Any]) -> dict[str, Any]:
    """The answer for a model whose process ended without one."""
    return name_model(model, gpu) | {"flags": {}, "choices": {}, "unverified": {"arguments": "the engine's process died"}}


def main() -> int:
    """Serve one request."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints is not the answer
    request = json.load(sys.stdin)
    readings.be_quiet()
    prepared = prepare(request)
    print(json.dumps(prepared["told"]), file=output, flush=True)
    for gpu in request["gpus"]:
        for line in run_apart(read_gpu, gpu, prepared) or [tell_dead(model, gpu) for model in gpu["models"]]:
            print(json.dumps(line), file=output, flush=True)
    return 0
