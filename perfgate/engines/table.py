"""The table of engines: a scenario's `server.engine` names a row, and facts of all engines are read here."""

from __future__ import annotations

from perfgate.engines.sglang import SGLANG, SGLANG_CPU
from perfgate.engines.vllm import VLLM, VLLM_CPU

ENGINES = {engine.name: engine for engine in (SGLANG, SGLANG_CPU, VLLM, VLLM_CPU)}

PACKAGES = tuple(dict.fromkeys(engine.package for engine in ENGINES.values()))
"""The distributions of the engines. The first is a fact of every fingerprint, another one where it is installed."""

CACHE_PLACES = {folder.variable: folder.place for engine in ENGINES.values() for folder in engine.caches if folder.place}
"""Where each compiler keeps what it compiled, below the folder of an arm's caches, by the variable that moves it."""


def find_backend(backend: str) -> str:
    """The `backend` of the engine that a load generator's backend is for; the first engine's where no name begins so."""
    known = [engine.backend for engine in ENGINES.values()]
    return next((one for one in known if backend.startswith(one)), known[0])
