"""Names of an engine that may be absent, or may lack them."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from perfgate_moe.errors import NotApplicableError


def load_names(needed: str, **places: str) -> SimpleNamespace:
    """What stands at each place, `module` or `module:name`, under its keyword.

    `needed` says which versions have them, for the NotApplicableError that names what this installation lacks.
    """
    try:
        return SimpleNamespace(**{key: _load(place) for key, place in places.items()})
    except ImportError as error:
        raise NotApplicableError(f"{needed} is needed: {error}") from error


def _load(place: str) -> Any:
    module_name, _, name = place.partition(":")
    module = import_module(module_name)
    if name and not hasattr(module, name):
        raise ImportError(f"{module_name} has no {name}")
    return getattr(module, name) if name else module
