"""SGLang plug-in: put our MoE layer into a live server, count what it does, and refuse what it does not know.

`SGLANG_MOE_FUSE_DOWN_SUM_REDUCE=auto|slots|owner|atomic32` asks for it, and `1` means `auto`; unset, `0` or `off` leaves the
server alone. A server that asks for it and cannot have it does not start: SGLang swallows a plug-in's exceptions, so a refusal
ends the process.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perfgate_moe.engines.counters import Counters
from perfgate_moe.engines.switch import OFF, ON, VARIABLE
from perfgate_moe.errors import MoeInputError, NotApplicableError

if TYPE_CHECKING:
    from perfgate_moe.engines.swap import ServerState

COUNTERS_VARIABLE = "PERFGATE_MOE_COUNTERS"
MODES = ("auto", "slots", "owner", "atomic32")
MODULE = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
# Function -> hash of its parameters (see `signature_hash`) -> SGLang versions that have them. The first function is the whole
# layer; the second is where LoRA and the split runner enter it, after alignment.
LAYER, SEQUENCE = "fused_experts_impl", "_fused_moe_kernel_sequence"
KNOWN: dict[str, dict[str, str]] = {
    LAYER: {"37b8968f01e1b0eb": "0.5.15 to 0.5.16"},
    SEQUENCE: {"87edbd2096a52989": "0.5.15 to 0.5.16"},
}


def register() -> None:
    """Entry point `sglang.srt.plugins`: hook the server if, and only if, the environment asks for it."""
    try:
        mode = parse_mode(os.environ.get(VARIABLE, ""))
        if mode is None:
            return
        module = import_module(MODULE)
        versions = {name: require_known(name, getattr(module, name, None)) for name in KNOWN}
    except (MoeInputError, ImportError) as error:
        # SystemExit, because SGLang logs any Exception of a plug-in and serves without it.
        raise SystemExit(f"perfgate: {VARIABLE}: {error}") from error
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - exists in a server only

    path = os.environ.get(COUNTERS_VARIABLE)
    counters = Counters(mode=mode, versions=versions, path=Path(path) if path else None)
    swap = Swap(module=module, counters=counters)
    for name in KNOWN:
        HookRegistry.register(f"{MODULE}.{name}", swap.around(getattr(module, name)), HookType.AROUND)
    print(f"perfgate moe: {mode}: hooking {', '.join(KNOWN)} of SGLang {_installed_version()}", flush=True)


def parse_mode(text: str) -> str | None:
    """The mode that the variable names, None for off. MoeInputError for anything else."""
    if text in OFF:
        return None
    if text in ON:
        return "auto"
    if text not in MODES:
        raise MoeInputError(f"{text!r} is no mode: choose one of {', '.join(MODES)}, 1 (auto), 0 or off")
    return text


def signature_hash(function: Callable[..., Any]) -> str:
    """A hash of the parameters' names, kinds and defaults, in order; annotations do not enter."""
    parameters = inspect.signature(function).parameters.values()
    text = ";".join(f"{each.name}:{each.kind.name}:{each.default!r}" for each in parameters)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def require_known(name: str, function: Any) -> str:
    """The SGLang versions whose `name` has this signature. MoeInputError for one that is not in KNOWN."""
    if not callable(function):
        raise MoeInputError(f"SGLang {_installed_version()} has no {MODULE}.{name}: unset {VARIABLE}")
    found = signature_hash(function)
    if found not in KNOWN[name]:
        known = ", ".join(f"{each} ({versions})" for each, versions in KNOWN[name].items())
        raise MoeInputError(
            f"SGLang {_installed_version()}: {name} has the unknown signature {found}, known are {known}; "
            f"unset {VARIABLE} or use such a version"
        )
    return KNOWN[name][found]


def _installed_version() -> str:
    return str(getattr(import_module("sglang"), "__version__", "unknown"))


@dataclass(slots=True, kw_only=True)
class Swap:
    """Hooks that compute a layer here when they can, and count."""

    module: ModuleType
    counters: Counters
    _here: threading.local

    def __init__(self, *, module: ModuleType, counters: Counters) -> None:
        self.module = module
        self.counters = counters
        self._here = threading.local()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """An AROUND hook for one of the hooked functions."""
        parameters = inspect.signature(function).parameters
        names = tuple(parameters)
        defaults = {name: each.default for name, each in parameters.items() if each.default is not inspect.Parameter.empty}

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "is_left", False):
                return original(*args, **kwargs)
            return self.run(
                functools.partial(original, *args, **kwargs), defaults | dict(zip(names, args, strict=False)) | kwargs
            )

        return hook

    def run(self, original: Callable[[], Any], call: dict[str, Any]) -> Any:
        """The layer's answer, by our kernels or by `original`."""
        import torch  # noqa: PLC0415 - loaded in a server anyway

        from perfgate_moe.engines.swap import choose_plan, read_call  # noqa: PLC0415 - loads torch
        from perfgate_moe.layer.fused import fused_moe  # noqa: PLC0415 - loads Triton

        try:
            problem = read_call(call, self.server())
            plan = choose_plan(self.counters.mode, problem)
        except NotApplicableError as reason:
            self.counters.count_fallback(str(reason))
            return self._leave(original)
        answer = fused_moe(problem, plan)
        is_captured = answer.is_cuda and torch.cuda.is_current_stream_capturing()
        self.counters.count_computed(plan.variant, is_captured=is_captured)
        return answer

    def server(self) -> ServerState:
        """What the server promises at this moment."""
        import triton  # noqa: PLC0415 - slow to load

        from perfgate_moe.engines.swap import ServerState  # noqa: PLC0415 - loads torch

        return ServerState(
            is_deterministic=bool(self.module.is_batch_invariant_mode_enabled()),
            # 0.5.15 has no symmetric memory in this place.
            is_symmetric=hasattr(self.module, "use_symmetric_memory") and bool(self.module.get_server_args().enable_symm_mem),
            is_interpreted=bool(triton.knobs.runtime.interpret),
        )

    def _leave(self, original: Callable[[], Any]) -> Any:
        """SGLang's own layer, whose inner function is not to be taken for a call of its own."""
        self._here.is_left = True
        try:
            return original()
        finally:
            self._here.is_left = False
