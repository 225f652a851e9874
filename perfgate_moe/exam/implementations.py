"""Everything that claims to compute the layer, by name: ours, others', and what an entry point or `module:function` adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from perfgate_moe.errors import MoeInputError
from perfgate_moe.layer.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

ENTRY_POINT_GROUP = "perfgate_moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A way to compute the layer and what it promises.

    `target` is `module:function`, a function from Problem to the answer [M, H]. `is_deterministic` promises bitwise equal
    reruns. `needs_gpu` keeps it out of runs without one.
    """

    name: str
    target: str
    is_deterministic: bool = True
    needs_gpu: bool = False

    def load(self) -> Callable[[Problem], Tensor]:
        """Import the function; MoeInputError says which part of `target` is missing, or what importing it raised."""
        module_name, separator, function_name = self.target.partition(":")
        if not separator or not function_name:
            raise MoeInputError(f"implementation {self.target!r} is not module:function")
        try:
            function = getattr(import_module(module_name), function_name)
        except ModuleNotFoundError as error:
            raise MoeInputError(
                f"implementation {self.target!r}: no module {error.name!r}; install it or set PYTHONPATH"
            ) from error
        except AttributeError as error:
            raise MoeInputError(f"implementation {self.target!r}: {module_name} has no {function_name!r}") from error
        # A module of a kernel's author may do anything, end the program too: nothing would have been judged.
        except (Exception, SystemExit) as error:
            what = f"importing {module_name} raised {type(error).__name__} ({error})"
            raise MoeInputError(f"implementation {self.target!r}: {what}; nothing was judged") from error
        if not callable(function):
            raise MoeInputError(f"implementation {self.target!r} is not callable")
        return function  # type: ignore[no-any-return]


_OURS = "perfgate_moe.layer.fused"
_SGLANG = "perfgate_moe.engines.sglang_peer"
_RUNNERS = "perfgate_moe.engines.sglang_runners"
BUILT_IN = (
    Implementation(name="torch-float32", target="perfgate_moe.layer.reference:float32"),
    Implementation(name="torch-staged", target="perfgate_moe.layer.reference:staged"),
    Implementation(name="triton", target=f"{_OURS}:automatic", needs_gpu=True),
    Implementation(name="triton-slots", target=f"{_OURS}:slots", needs_gpu=True),
    Implementation(name="triton-direct", target=f"{_OURS}:direct", needs_gpu=True),
    Implementation(name="triton-owner", target=f"{_OURS}:owner", needs_gpu=True),
    Implementation(name="triton-atomic32", target=f"{_OURS}:atomic32", needs_gpu=True, is_deterministic=False),
    Implementation(name="sglang", target=f"{_SGLANG}:plain", needs_gpu=True),
    Implementation(name="sglang-fused-sum", target=f"{_SGLANG}:fused_sum", needs_gpu=True, is_deterministic=False),
    Implementation(name="sglang-mxfp4", target="perfgate_moe.engines.sglang_mxfp4_peer:layer", needs_gpu=True),
    Implementation(name="sglang-marlin", target=f"{_RUNNERS}:marlin", needs_gpu=True),
    Implementation(name="sglang-flashinfer-mxfp4", target=f"{_RUNNERS}:flashinfer", needs_gpu=True),
    Implementation(name="sglang-deep-gemm", target=f"{_RUNNERS}:deep_gemm", needs_gpu=True),
    Implementation(name="vllm", target="perfgate_moe.engines.vllm_peer:layer"),
)


def registry() -> dict[str, Implementation]:
    """Built-in implementations and those that installed packages register under the entry point group `perfgate_moe`."""
    added = (Implementation(name=entry.name, target=entry.value) for entry in entry_points(group=ENTRY_POINT_GROUP))
    return {implementation.name: implementation for implementation in (*BUILT_IN, *added)}


def find(name: str) -> Implementation:
    """The implementation registered as `name`, or the one that `module:function` points at."""
    known = registry()
    if name in known:
        return known[name]
    if ":" in name:
        return Implementation(name=name, target=name)
    raise MoeInputError(f"no implementation {name!r}: choose one of {', '.join(sorted(known))}, or give module:function")
