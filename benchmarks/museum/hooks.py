"""A hook: which function of the engine it goes around, and what runs in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Variant(StrEnum):
    """Which form of an exhibit's patch runs: the report's fault, or the same place repaired."""

    BROKEN = "broken"
    FIXED = "fixed"


BROKEN = Variant.BROKEN
Around = Callable[..., Any]
"""Takes the original function, then its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """`around` goes around the function that `target` names; `is_proof` where its first call proves that the patch runs."""

    target: str
    around: Around
    is_proof: bool = True

    def announce(self, proof: str) -> Around:
        """The hook, which prints `proof` at its first call."""
        if not self.is_proof:
            return self.around
        is_said = False

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal is_said
            if not is_said:
                is_said = True
                print(proof, flush=True)
            return self.around(original, *args, **kwargs)

        return hook


def call_through(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An AROUND hook that changes nothing: what is fixed stands in the same place as what is broken."""
    return original(*args, **kwargs)
