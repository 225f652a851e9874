"""SGLang plug-in: put our MoE layer into a live server, count what it does, and refuse what it does not know.

`SGLANG_MOE_FUSE_DOWN_SUM_REDUCE=auto|slots|owner|atomic32` asks for it, and `1` means `auto`; unset, `0` or `off` leaves the
server alone. A server that asks for it and cannot have it does not start: SGLang swallows a plug-in's exceptions, so a refusal
ends the process.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perfgate_moe.engines.counters import Counters, is_captured
from perfgate_moe.engines.sglang_layer import (
    ALLOCATOR,
    CORE,
    FIRST,
    GRAPHS,
    IS_GRAPH,
    LAST,
    LOADER,
    MODULE,
    OPTIONS,
    OPTIONS_OF,
    OUTPUT,
    ROUTER,
    RUNNER,
    SWIZZLE,
    TABLES,
    TAKEN,
    find_since,
    list_strange,
)
from perfgate_moe.engines.switch import OFF, ON, VARIABLE
from perfgate_moe.errors import MoeInputError, NotApplicableError

if TYPE_CHECKING:
    from perfgate_moe.engines.swap import ServerState

COUNTERS_VARIABLE = "PERFGATE_MOE_COUNTERS"
MODES = ("auto", "slots", "owner", "atomic32")


def register() -> None:
    """Entry point `sglang.srt.plugins`: hook the server if, and only if, the environment asks for it."""
    try:
        mode = parse_mode(os.environ.get(VARIABLE, ""))
        if mode is None:
            return
        module = _import(MODULE)
        _require(module, "is_batch_invariant_mode_enabled")
        _require(_import(ALLOCATOR), "is_symmetric_memory_enabled")
        versions = {name: require_known(name, getattr(module, name, None)) for name in TAKEN}
        path = os.environ.get(COUNTERS_VARIABLE)
        counters = Counters(mode=mode, versions=versions, path=Path(path) if path else None)
        swap = Swap(module=module, counters=counters)
        hooks = {f"{MODULE}.{name}": swap.around(getattr(module, name)) for name in TAKEN} | _hook_micro(swap)
    except MoeInputError as error:
        # SystemExit, because SGLang logs any Exception of a plug-in and serves without it.
        raise SystemExit(f"perfgate: {VARIABLE}: {error}") from error
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - exists in a server only

    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    told = ", ".join(f"{name} (as since {since})" for name, since in versions.items())
    others = ", ".join(".".join(target.split(".")[-2:]) for target in hooks if not target.startswith(MODULE))
    print(f"perfgate moe: {mode}: hooking {told}{others and f', {others}'} of SGLang {_installed_version()}", flush=True)


def _hook_micro(swap: Swap) -> dict[str, Callable[..., Any]]:
    """The hooks of SGLang's runner of 4-bit weights, where there is one: without `triton_kernels` nothing calls it."""
    if find_spec("triton_kernels") is None:
        return {}
    from perfgate_moe.engines.micro_swap import MicroSwap  # noqa: PLC0415 - loads torch and Triton

    try:
        router, loader, runner, options, graphs = map(_import, (ROUTER, LOADER, RUNNER, OPTIONS, GRAPHS))
        # Defined where SGLang could import what it needs of triton_kernels.
        _require(router, "routing")
    except MoeInputError as error:
        # SGLang cannot use a runner that it cannot load, and its other layers do not need it.
        print(f"perfgate moe: no runner of 4-bit weights: {error}", flush=True)
        return {}
    needed = (
        (router, TABLES), (loader, SWIZZLE), (runner, CORE), (runner, OUTPUT), (options, OPTIONS_OF), (graphs, IS_GRAPH)
    )  # fmt: skip
    for module, name in needed:
        _require(module, name)
    micro = MicroSwap(
        mode=swap.counters.mode, counters=swap.counters, server=swap.server, promised=swap.promised,
        tables=getattr(router, TABLES)._fields, output=getattr(runner, OUTPUT),
    )  # fmt: skip
    return {f"{RUNNER}.{CORE}.run": micro.run, f"{ROUTER}.routing": micro.put_off, f"{LOADER}.{SWIZZLE}": micro.lay_out}


def parse_mode(text: str) -> str | None:
    """The mode that the variable names, None for off. MoeInputError for anything else."""
    if text in OFF:
        return None
    if text in ON:
        return "auto"
    if text not in MODES:
        raise MoeInputError(f"{text!r} is no mode: choose one of {', '.join(MODES)}, 1 (auto), 0 or off")
    return text


def require_known(name: str, function: Any) -> str:
    """The SGLang version since which `name` takes these parameters. MoeInputError where no version that was read does."""
    if not callable(function):
        raise MoeInputError(f"SGLang {_installed_version()} has no {MODULE}.{name}: {_ADVICE}")
    taken = inspect.signature(function).parameters
    since = find_since(name, taken)
    if since is None:
        raise MoeInputError(f"SGLang {_installed_version()}: {name} {list_strange(name, taken)}: {_ADVICE}")
    return since


_ADVICE = f"unset {VARIABLE} or use {FIRST} to {LAST}"


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise MoeInputError(f"SGLang {_installed_version()}: {name}: {error}: {_ADVICE}") from error


def _require(module: ModuleType, name: str) -> None:
    if not callable(getattr(module, name, None)):
        raise MoeInputError(f"SGLang {_installed_version()} has no {module.__name__}.{name}: {_ADVICE}")


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
        from perfgate_moe.engines.swap import choose_plan, read_call  # noqa: PLC0415 - loads torch
        from perfgate_moe.layer.fused import fused_moe  # noqa: PLC0415 - loads Triton

        try:
            problem = read_call(call, self.server())
            plan = choose_plan(self.counters.mode, problem)
        except NotApplicableError as reason:
            self.counters.count_fallback(str(reason))
            return self._leave(original)
        answer = fused_moe(problem, plan)
        self.counters.count_computed(plan.variant, is_captured=is_captured(answer))
        return answer

    def server(self) -> ServerState:
        """What the server promises at this moment."""
        import triton  # noqa: PLC0415 - slow to load

        from perfgate_moe.engines.swap import ServerState  # noqa: PLC0415 - loads torch

        allocator = import_module(ALLOCATOR)
        return ServerState(
            is_deterministic=bool(self.module.is_batch_invariant_mode_enabled()),
            is_symmetric=hasattr(self.module, "use_symmetric_memory") and bool(allocator.is_symmetric_memory_enabled()),
            is_interpreted=bool(triton.knobs.runtime.interpret),
        )

    def promised(self) -> ServerState:
        """What the server will promise, by its options: some of it is not so yet while it loads a model."""
        found, options = self.server(), getattr(import_module(OPTIONS), OPTIONS_OF)()
        is_pieces = getattr(import_module(GRAPHS), IS_GRAPH)("prefill", "tc_piecewise")
        return replace(
            found,
            is_deterministic=found.is_deterministic or bool(options.enable_deterministic_inference),
            is_traced=bool(options.enable_torch_compile) or is_pieces,
        )

    def _leave(self, original: Callable[[], Any]) -> Any:
        """SGLang's own layer, whose inner function is not to be taken for a call of its own."""
        self._here.is_left = True
        try:
            return original()
        finally:
            self._here.is_left = False
