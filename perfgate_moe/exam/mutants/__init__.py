"""Wrong kernels: the reference with one mistake each, of kinds that real kernels have had. The suite must fail every one."""

from perfgate_moe.exam.mutants import arithmetic, memory, packed, quantised, routing
from perfgate_moe.exam.mutants.registry import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "arithmetic", "memory", "packed", "quantised", "routing"]
