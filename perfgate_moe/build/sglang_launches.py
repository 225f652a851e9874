"""Compile the MoE kernel of an SGLang checkout exactly as its own launches would have it compiled, with or without a GPU.

Run by the checkout's Python as `python -m perfgate_moe.build.sglang_launches`; reads one JSON request, prints one JSON line per
kernel. SGLang's launching function runs on tensors without memory and the launches are caught before a driver is needed; what
they pass goes through Triton's own specialisation, so that the compiled kernel is the one that a server finds in the cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

from perfgate_moe.build.sass import inspect

MODULES = (
    "sglang.kernels.ops.moe.fused_moe_triton_kernels",
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_kernels",
)
# What SGLang takes without a tuned table: few rows per expert, and more.
CONFIGS = (
    {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1},
    {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8},
)
TOKENS = (16, 1024)
NO_KERNEL, UNKNOWN_TRITON = 3, 4


def find_kernels() -> ModuleType | None:
    """The checkout's module of MoE kernels, wherever this version keeps it."""
    for name in MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
    return None


def catch_launches(kernels: ModuleType, layer: dict[str, Any]) -> Iterator[tuple[str, int, tuple[Any, ...], dict[str, Any]]]:
    """Both products of a layer, the second also with the fused sum, at few and many tokens: name, rows, arguments."""
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        del grid, warmup
        caught.append((args, kwargs))

    kernels.fused_moe_kernel.run = run
    for tokens, config in zip(TOKENS, CONFIGS, strict=True):
        for product in ("gate_up", "down", "down-fused-sum"):
            launch(kernels, layer, tokens, config, product)
            args, kwargs = caught.pop()
            yield f"sglang/{product}/{layer['name']}/M={tokens}", config["BLOCK_SIZE_M"], args, kwargs


def launch(kernels: ModuleType, layer: dict[str, Any], tokens: int, config: dict[str, int], product: str) -> None:
    """One call of SGLang's launching function."""

    def empty(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta")

    experts, top_k, hidden, inner = layer["E"], layer["k"], layer["H"], layer["I"]
    is_first, is_fused = product == "gate_up", product == "down-fused-sum"
    columns, depth = (2 * inner, hidden) if is_first else (hidden, inner)
    # SGLang's alignment has one bin more than experts; whether this length divides by 16 enters the machine code.
    padded = tokens * top_k + (experts + 1) * (config["BLOCK_SIZE_M"] - 1)
    kernels.invoke_fused_moe_kernel(
        empty(tokens if is_first else tokens * top_k, depth),
        empty(experts, columns, depth),
        empty(experts, columns, dtype=torch.float32) if layer["bias"] else None,
        empty(tokens, columns) if is_fused else empty(tokens, top_k, columns),
        None,
        None,
        None,
        empty(tokens, top_k, dtype=torch.float32),
        empty(tokens, top_k, dtype=torch.int32),
        empty(padded, dtype=torch.int32),
        empty(padded // config["BLOCK_SIZE_M"] + 1, dtype=torch.int32),
        empty(1, dtype=torch.int32),
        not is_first,
        top_k if is_first else 1,
        config,
        compute_type=tl.bfloat16,
        use_fp8_w8a8=False,
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        per_channel_quant=False,
        filter_expert=False,
        **({} if is_first else {"fuse_sum_all_reduce": is_fused, "router_topk": top_k}),
    )


def compile_launch(kernel: Any, arch: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """The compiled kernel of one launch, and whether it came from Triton's cache."""
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    backend = triton.compiler.make_backend(target)
    kwargs["debug"] = kwargs.get("debug", kernel.debug) or triton.knobs.runtime.debug
    kwargs["instrumentation_mode"] = triton.knobs.compilation.instrumentation_mode
    bind = triton.runtime.jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialisation, options = bind(*args, **kwargs)
    options, signature, constants, attributes = kernel._pack_args(backend, kwargs, bound, specialisation, options)  # noqa: SLF001 - Triton's own way
    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: object) -> None:
        hits.append(cache_hit)

    triton.knobs.compilation.listener = listen
    source = triton.compiler.ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=options.__dict__), all(hits)


def describe(name: str, rows: int, compiled: tuple[Any, bool], seconds: float) -> dict[str, Any]:
    """One kernel as JSON values."""
    kernel, is_cached = compiled
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        machine = inspect(cubin)
    usage = {"registers": machine.registers, "stack_bytes": machine.stack_bytes, "local_bytes": machine.local_bytes}
    return {
        "name": name,
        "rows": rows,
        "seconds": seconds,
        "is_cached": is_cached,
        "shared_bytes": int(kernel.metadata.shared),
        "machine": usage | {"opcodes": dict(machine.opcodes)},
    }


def main() -> int:
    """Serve one request; the exit code says why nothing was compiled."""
    request = json.load(sys.stdin)
    kernels = find_kernels()
    if kernels is None:
        print(f"none of {', '.join(MODULES)} is there", file=sys.stderr)
        return NO_KERNEL
    for layer in request["layers"]:
        for name, rows, args, kwargs in catch_launches(kernels, layer):
            begun = time.perf_counter()
            try:
                compiled = compile_launch(kernels.fused_moe_kernel, request["arch"], args, kwargs)
            except AttributeError as error:
                print(f"this Triton compiles otherwise than 3.6: {error}", file=sys.stderr)
                return UNKNOWN_TRITON
            print(json.dumps(describe(name, rows, compiled, time.perf_counter() - begun)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
