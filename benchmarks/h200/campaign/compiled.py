"""Compile SGLang's Marlin kernels for Hopper where there is nvcc but no GPU, as caches that `campaign.py --carried` lays.

    python -m benchmarks.h200.campaign.compiled SITE FOLDER

SITE is the unpacked bundle, with SGLang and tvm-ffi; FOLDER gets `caches.tar.xz`. SGLang compiles Marlin's products at their
first use, 270 seconds of one core, and finds them by a name that hashes its sources: the one here is made by SGLang's own
function. A machine that cannot load the library compiles it after all.
"""

from __future__ import annotations

import ast
import hashlib
import pathlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from typing import Any

CACHES, PLACE = "caches.tar.xz", "caches/base/tvm_ffi"
MODULES = {
    # The words of the name, the source, the function that is exported and how C++ calls it.
    "gptq_marlin_repack": ("gemm/marlin/gptq_marlin_repack.cuh", "gptq_marlin_repack", "gptq_marlin_repack"),
    "moe_wna16_marlin_bf16_t": (
        "gemm/marlin_moe/moe_wna16_marlin.cuh",
        "moe_wna16_marlin_gemm",
        "moe_wna16_marlin_gemm<bf16_t>",
    ),
}
HEADERS = ("container/tensor.h", "dtype.h", "error.h", "extra/c_env_api.h", "function.h")
FLAGS = ("-Xcompiler", "-fPIC", "-DSGL_CUDA_ARCH=900", "-std=c++20", "-O3", "--expt-relaxed-constexpr")
TARGET = "-gencode=arch=compute_90a,code=sm_90a"


def hash_sources(kernels: Path, source: Path) -> str:
    """What SGLang appends to a module's name: its own function, taken from its file, since its package needs a GPU's torch."""
    tree = ast.parse((kernels / "utils" / "compile.py").read_text(encoding="utf-8"))
    wanted = {"_QUOTED_INCLUDE_RE", "_ANGLE_INCLUDE_RE", "_local_jit_source_hash"}
    nodes: list[ast.stmt] = []
    for node in tree.body:
        names = {getattr(target, "id", "") for target in node.targets} if isinstance(node, ast.Assign) else set()
        if names & wanted or (isinstance(node, ast.FunctionDef) and node.name in wanted):
            nodes.append(node)
    space: dict[str, Any] = {"re": re, "hashlib": hashlib, "pathlib": pathlib, "List": list, "KERNEL_PATH": kernels}
    exec(compile(ast.Module(body=nodes, type_ignores=[]), "compile.py", "exec"), space)  # noqa: S102 - SGLang's own
    return str(space["_local_jit_source_hash"]([str(source)]))


def name_module(site: Path, name: str) -> tuple[str, str]:
    """A module's name, and its folder's in tvm-ffi's cache on Hopper."""
    kernels = (site / "sglang" / "jit_kernel").resolve()
    module = f"sgl_kernel_jit_{name}_{hash_sources(kernels, kernels / 'csrc' / MODULES[name][0])}"
    version = re.search(r"^__version__ = .*'([^']+)'$", (site / "tvm_ffi" / "_version.py").read_text(), re.MULTILINE)
    if version is None:
        raise SystemExit(f"{site / 'tvm_ffi' / '_version.py'} names no version")
    return module, f"{module}__arch_9.0a__tvmffi_{version[1]}"


def build(site: Path, folder: Path, name: str) -> None:
    """Compile one module into its folder below `folder`."""
    source, exported, called = MODULES[name]
    module, place = name_module(site, name)
    nvcc = which("nvcc")
    if nvcc is None:
        raise SystemExit("no nvcc on PATH: of the CUDA that the machine has, 13.0")
    target = folder / place
    target.mkdir(parents=True)
    kernels, ffi = (site / "sglang" / "jit_kernel").resolve(), (site / "tvm_ffi").resolve()
    lines = [f"#include <tvm/ffi/{header}>" for header in HEADERS]
    lines += [f'#include "{kernels / "csrc" / source}"', f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({exported}, ({called}));"]
    code, library = folder / f"{module}.cu", target / f"{module}.so"
    code.write_text("\n".join(lines) + "\n", encoding="utf-8")
    include = [f"-I{kernels / 'include'}", f"-I{ffi / 'include'}"]
    link = ["-shared", "--cudart", "shared", f"-L{ffi / 'lib'}", "-ltvm_ffi"]
    run([nvcc, *FLAGS, TARGET, *include, str(code), *link, "-o", str(library)])
    code.unlink()


def run(words: Sequence[str]) -> None:
    """Run a compiler, whose own words tell what is wrong."""
    if subprocess.run(words, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(words)}")


def main() -> None:
    """Compile both modules side by side and pack them."""
    site, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: build(site, folder / PLACE, name), MODULES))
    with tarfile.open(folder / CACHES, "w:xz") as tar:
        tar.add(folder / PLACE, PLACE)
    print(f"{folder / CACHES}: {(folder / CACHES).stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
