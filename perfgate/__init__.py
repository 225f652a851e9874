"""Judge whether a change made LLM serving slower, and say how sure the answer is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["Result", "__version__", "judge", "load"]

# For type checkers `__init__.pyi` says the same.
_PLACES = {"Result": "perfgate.api", "judge": "perfgate.check", "load": "perfgate.api"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: servers' plug-ins and `perfgate --help` import this package too."""
    if name not in _PLACES:
        raise AttributeError(f"module 'perfgate' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_PLACES[name]), name)
