"""Compile every kernel variant ahead of time, with or without a GPU, and refuse machine code that would be slow or wrong."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from perfgate_moe.build.recipes import KernelRecipe
from perfgate_moe.build.sass import MachineCode, inspect
from perfgate_moe.errors import BuildError, MoeInputError
from perfgate_moe.layer.bricks import find_disorder

WARP = 32
MOST_REGISTERS = 255
# Dynamic shared memory that one block may use, in bytes (CUDA programming guide, compute capability table).
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# Opcodes of the matrix units by generation: wgmma on Hopper for tiles of at least 64 rows, tcgen05 on Blackwell.
MATRIX_OPCODES = {80: ("HMMA",), 90: ("HMMA", "HGMMA"), 100: ("HMMA", "UTCHMMA", "UTCMMA")}
# Matrix units that take 8-bit floats; without them a compiler widens the operands, which costs what the format was to save.
MATRIX_OPCODES_FP8 = {90: ("QGMMA", "HMMA"), 100: ("UTCQMMA", "QMMA", "HMMA")}
FENCES = ("MEMBAR", "CCTL.IVALL", "ERRBAR", "ATOMG")
HOPPER = 90
WARPGROUP_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """A compiled recipe: what it costs, how long it took (cached or not), and what is wrong with it."""

    recipe: str
    arch: int
    seconds: float
    is_cached: bool
    shared_bytes: int
    machine: MachineCode
    problems: tuple[str, ...]

    def __str__(self) -> str:
        """One line: verdict, cost, time."""
        state = "REFUSED: " + "; ".join(self.problems) if self.problems else "ok"
        source = "cached" if self.is_cached else "compiled"
        cost = f"{self.machine.registers} registers, {self.shared_bytes} B shared"
        return f"sm_{self.arch} {self.recipe}: {cost}, {source} in {self.seconds:.2f} s: {state}"


def parse_arch(text: str) -> int:
    """90 from `sm_90`; MoeInputError names the architectures that are known."""
    known = {f"sm_{arch}": arch for arch in SHARED_BYTES}
    if text not in known:
        raise MoeInputError(f"--arch {text}: choose one of {', '.join(known)}")
    return known[text]


def build(recipe: KernelRecipe, arch: int) -> CompiledKernel:
    """Compile one recipe for `arch` (Triton's cache is used) and judge its machine code."""
    began = time.perf_counter()
    compiled, is_cached = _compile(recipe, arch)
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        machine = inspect(cubin)
    shared = int(compiled.metadata.shared)
    return CompiledKernel(
        recipe=recipe.name,
        arch=arch,
        seconds=seconds,
        is_cached=is_cached,
        shared_bytes=shared,
        machine=machine,
        problems=(*judge(recipe, arch, shared, machine), *(find_disorder(compiled.asm["ttgir"]) if recipe.is_woven else ())),
    )


def judge(recipe: KernelRecipe, arch: int, shared_bytes: int, machine: MachineCode) -> Iterator[str]:
    """Say what is wrong with a kernel's machine code; nothing for a sound one."""
    if machine.registers > MOST_REGISTERS:
        yield f"{machine.registers} registers per thread, more than {MOST_REGISTERS}"
    if machine.stack_bytes or machine.local_bytes or machine.count("LDL", "STL"):
        yield f"spills: {machine.stack_bytes} bytes of stack, {machine.local_bytes} of local memory"
    if shared_bytes > SHARED_BYTES[arch]:
        yield f"{shared_bytes} bytes of shared memory, more than {SHARED_BYTES[arch]} on sm_{arch}"
    if recipe.is_product and not machine.count(*_matrix_opcodes(recipe, arch)):
        yield f"no matrix instruction ({', '.join(_matrix_opcodes(recipe, arch))})"
    fences = _device_fences(machine)
    if recipe.is_atomic and fences:
        yield f"reductions wait: {', '.join(fences)} found, so an atomic is not relaxed"
    if recipe.is_atomic and not machine.count("REDG", "RED"):
        yield "no reduction instruction"


def _device_fences(machine: MachineCode) -> list[str]:
    """Opcodes that make a thread wait for the whole device; a barrier within the block, which tensor copies need, is none."""
    return sorted(
        opcode
        for opcode in machine.opcodes
        if any(opcode == name or opcode.startswith(f"{name}.") for name in FENCES) and not opcode.endswith(".CTA")
    )


def _matrix_opcodes(recipe: KernelRecipe, arch: int) -> tuple[str, ...]:
    """Opcodes of which a product must use one: on Hopper, tiles of 64 rows and more must use the warpgroup form."""
    known = MATRIX_OPCODES_FP8 if recipe.is_fp8 else MATRIX_OPCODES
    if arch == HOPPER and recipe.rows >= WARPGROUP_ROWS:
        return tuple(opcode for opcode in known[arch] if opcode.endswith("GMMA"))
    return known[arch]


def _compile(recipe: KernelRecipe, arch: int) -> tuple[Any, bool]:
    """Triton's compiled kernel, and whether it came from the cache."""
    names = recipe.kernel.arg_names
    # Overlapped launches and tensor copies came with Hopper: before it, the same kernels run without.
    late = {name: recipe.constants[name] and arch >= HOPPER for name in ("OVERLAP", "TMA") if name in recipe.constants}
    constants = recipe.constants | late
    types = {name: "constexpr" if name in constants else recipe.types[name] for name in names}
    if arch < HOPPER:
        types = {name: re.sub(r"tensordesc<(\w+)\[.*", r"*\1", kind) for name, kind in types.items()}
    whole = {"H"} if constants.get("EIGHTHS") else {"H", "I"}
    aligned = [i for i, name in enumerate(names) if types[name].startswith("*") or name in whole]
    source = ASTSource(
        fn=recipe.kernel,
        signature=types,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: object) -> None:
        hits.append(cache_hit)

    triton.knobs.compilation.listener = listen
    try:
        options = {"num_warps": recipe.warps, "num_stages": recipe.stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=options)
    except triton.runtime.errors.PTXASError as error:
        raise BuildError(f"{recipe.name} for sm_{arch}: the assembler refused it: {_last_complaint(str(error))}") from error
    finally:
        triton.knobs.compilation.listener = None
    return compiled, all(hits)


def _last_complaint(log: str) -> str:
    """The assembler's last line that names an error; its log holds the whole program."""
    complaints = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return complaints[-1] if complaints else log[:200]
