"""What a mutant is, and how one registers itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from perfgate_moe.exam.implementations import Implementation
from perfgate_moe.layer import reference
from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.reference import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A wrong implementation and the mistake it makes; one of a format of weights is right for all others.

    One that `is_coarse` stays within every limit and is told by its error over a sound layer's. The answer of one that is not
    `is_pure` depends on more than the problem, or it does more than answer.
    """

    name: str
    defect: str
    run: Callable[[Problem], Tensor]
    quant: str
    is_coarse: bool = False
    is_pure: bool = True

    @property
    def implementation(self) -> Implementation:
        """The mutant as the suite sees it; it promises determinism as the default variant does."""
        return Implementation(name=self.name, target=f"{self.run.__module__}:{self.name}")


_REGISTERED: dict[str, Mutant] = {}
MUTANTS = MappingProxyType(_REGISTERED)


def mutant_of(
    quant: str, *, is_coarse: bool = False, is_pure: bool = True
) -> Callable[[Callable[[Problem], Tensor]], Callable[[Problem], Tensor]]:
    """A decorator that registers wrong implementations under their functions' names; the docstring names the defect."""

    def register(run: Callable[[Problem], Tensor]) -> Callable[[Problem], Tensor]:
        defect = (run.__doc__ or "").strip()
        _REGISTERED[run.__name__] = Mutant(
            name=run.__name__, defect=defect, run=run, quant=quant, is_coarse=is_coarse, is_pure=is_pure
        )
        return run

    return register


mutant = mutant_of("none")
coarse = mutant_of("none", is_coarse=True)
impure = mutant_of("none", is_pure=False)


def run_with(problem: Problem, **steps: Callable[..., object]) -> Tensor:
    """Run the staged reference with some steps replaced."""

    def store(tensor: Tensor) -> Tensor:
        return tensor.to(problem.hidden.dtype).float()

    replaced = Steps(**{"store": store, **steps})  # type: ignore[arg-type]
    return reference.cast(problem, reference.layer(problem, torch.float32, replaced))
