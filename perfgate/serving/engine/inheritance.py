"""What a server inherits of the environment of the command that measures, and which of it steers an engine.

Both arms inherit alike, and a reader looks elsewhere for a difference: a variable that was exported before is the same in both
arms whatever an option says of one of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.errors import InputError
from perfgate.results.records import ArmRecord
from perfgate.serving.injection.injection import VARIABLE

STEERING = (
    # A row that is a variant of another engine's has its variables too.
    *sorted({prefix for engine in ENGINES.values() for prefix in engine.steering}),
    "CUDA_",
    "CUBLAS_",
    "NCCL_",
    "TRITON_",
    "TORCH",
    "PYTORCH_",
    "FLASHINFER_",
    "OMP_",
    "MKL_",
    "PERFGATE_MOE",
)
"""Beginnings of the names that engines and their libraries read."""

_SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH)(_|$)")


def inherit(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a server gets besides what its arm says: everything but an injection, which is always said of an arm."""
    return {name: value for name, value in variables.items() if name != VARIABLE}


def read_steering(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer engines, by name; none whose name looks like a secret."""
    return {
        name: value for name, value in sorted(variables.items()) if name.startswith(STEERING) and _SECRET.search(name) is None
    }


def require_apart(arms: Mapping[Arm, ArmRecord], inherited: Mapping[str, str]) -> None:
    """Raise InputError for a variable that one arm sets to what the other inherits: it would set nothing apart."""
    base, candidate = arms[Arm.BASE].env, arms[Arm.CANDIDATE].env
    for name in sorted(base.keys() | candidate.keys()):
        is_said = base.get(name) != candidate.get(name)
        if is_said and {**inherited, **base}.get(name) == {**inherited, **candidate}.get(name):
            who, other = (Arm.CANDIDATE, Arm.BASE) if name in candidate else (Arm.BASE, Arm.CANDIDATE)
            raise InputError(
                f"{name}: the {who.value} sets it to what the {other.value} inherits from this shell, so the arms would not "
                f"differ; `unset {name}` first"
            )
