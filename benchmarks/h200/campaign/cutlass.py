"""Compile FlashInfer's 4-bit layer for Hopper where there is nvcc but no GPU, as an archive for `campaign.py --release`.

    pip download --no-deps --python-version 3.12 --only-binary=:all: flashinfer-python==0.6.14 apache-tvm-ffi==0.1.11
    CUDA_HOME=CUDA python -m benchmarks.h200.campaign.cutlass SOURCES FOLDER [JOBS]

SOURCES are those wheels, unpacked; CUDA is the toolkit that the machine has, 13.0. Where it lacks the headers of
cuBLAS, cuSPARSE, cuSOLVER, cuRAND or NVRTC, the wheels of these names hold them. FlashInfer compiles 182 sources at a
layer's first call. gpt-oss' layer in MXFP4 with activations of 16 bits calls those of KEPT and 41 products. These
alone are compiled, with FlashInfer's own words; what else they name is null and never called. The archive holds them
as `flashinfer_jit_cache`, the package in which FlashInfer looks for a library before it compiles. What FOLDER has
compiled is not compiled again; eight products take two to four minutes of a core and 8 GB.
"""

from __future__ import annotations

import lzma
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.h200.campaign.bundle import FILTERS, GONE
from benchmarks.h200.campaign.compiled import run
from benchmarks.vllm.bundle import add

NAME, ARCHIVE = "fused_moe_90", "flashinfer-mxfp4.tar.xz"
PACKAGE = '''"""FlashInfer's libraries for Hopper: of {name} what gpt-oss' layer in MXFP4 calls."""

from pathlib import Path

__version__ = "{version}"


def get_jit_cache_dir():
    return str(Path(__file__).parent / "jit_cache")
'''
BINDING, LAYER = "flashinfer_cutlass_fused_moe_binding.cu", "cutlass_fused_moe_instantiation.cu"
KEPT = (
    BINDING,
    "moe_gemm_kernels_bf16_fp4.cu",
    "moe_gemm_tma_warp_specialized_input.cu",
    "moe_gemm_mixed_utils.cu",
    "deepgemm_jit_setup.cu",
    "memoryUtils.cu",
    "preQuantScaleKernel.cu",
    "envUtils.cpp",
    "logger.cpp",
    "stringUtils.cpp",
    "tllmException.cpp",
    "cutlass_heuristic.cpp",
    "lora.cpp",
)
TYPES = "__nv_bfloat16, __nv_fp4_e2m1"
INSTANCE = f"""#include "cutlass_fused_moe_kernels.cuh"
#include "moe_kernels.h"

namespace tensorrt_llm::kernels::cutlass_kernels {{
template class CutlassMoeFCRunner<{TYPES}>;
}}
"""
LAUNCHER = "tensorrt_llm/kernels/cutlass_kernels/moe_gemm/launchers/moe_gemm_tma_ws_mixed_input_launcher.inl"
MEASURED = ((128, 64, 256), (1, 1, 1))
"""The tile and cluster by which FlashInfer measures its workspace: the only product whose steps are not of 128 columns."""
TOGETHER = 8


def is_called(operation: Any) -> bool:
    """Whether FlashInfer's dispatch names one of its products in bfloat16 and MXFP4: it instantiates more than that."""
    if (operation.act_type.name, operation.weight_type.name) != ("bf16", "e2m1"):
        return False
    is_measured = (operation.cta_shape, operation.cga_shape) == MEASURED and "Coop" in operation.mainloop_schedule.name
    return operation.cta_shape[2] == 128 or is_measured


def write_products(generator: Any, folder: Path) -> Iterator[Path]:
    """Sources of the products, by FlashInfer's generator, those of one height together."""
    called = list(filter(is_called, generator.generate_sm90_mixed_type_grouped_gemm_operations(is_arch_enabled=True)))
    for rows in sorted({operation.cta_shape[0] for operation in called}):
        alike = [operation for operation in called if operation.cta_shape[0] == rows]
        for number, begin in enumerate(range(0, len(alike), TOGETHER)):
            path = folder / f"products_{rows}_{number}.cu"
            generator.write_file([LAUNCHER], alike[begin : begin + TOGETHER], str(path))
            yield path


def plan(sources: Path, folder: Path) -> dict[Path, list[str]]:
    """The words that compile each object, FlashInfer's own but for the source and tvm-ffi's headers."""
    os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(folder)}
    sys.path.append(str(sources))
    spec = import_module("flashinfer.jit.fused_moe").gen_cutlass_fused_moe_sm90_module()
    commands = {Path(one["file"]).name: shlex.split(one["command"]) for one in spec.get_compile_commands()}
    layer = folder / "layer.cu"
    layer.write_text(INSTANCE, encoding="utf-8")
    products = write_products(import_module("flashinfer.jit.gemm.cutlass.generate_kernels"), folder)
    asked = {Path(commands[name][2]): commands[name] for name in KEPT}
    asked |= dict.fromkeys((layer, *products), commands[LAYER])
    # The library is loaded by the tvm-ffi that travels, which may not be the one that runs here.
    running = import_module("tvm_ffi").libinfo.find_include_path()
    headers = [running, str((sources / "tvm_ffi" / "include").resolve())]
    beside = f"-I{Path(commands[LAYER][2]).parent}"
    made = {}
    for source, words in asked.items():
        own = [headers[1] if word == headers[0] else word for word in words]
        target = folder / f"{source.stem}.o"
        made[target] = [own[0], beside, "-c", str(source), *own[3:-1], str(target)]
    return made


def build(words: Sequence[str], target: Path) -> None:
    """Compile one object, whole or not at all, unless it is there."""
    if not target.exists():
        part = target.with_suffix(".part")
        run([*words[:-1], str(part)])
        part.rename(target)


def link(objects: Sequence[Path], library: Path) -> None:
    """Link the objects; SystemExit where something is missing that the layer calls."""
    weak = [library.with_suffix(f".{name}.o") for name in ("binding", "layer")]
    for made, name in zip(weak, (Path(BINDING).stem, "layer"), strict=True):
        (whole,) = (path for path in objects if path.stem == name)
        # What they name beyond this layer becomes null when the library is loaded.
        run(["objcopy", "--wildcard", "--weaken-symbol=*tensorrt_llm*", str(whole), str(made)])
    others = [str(path) for path in objects if path.stem not in {Path(BINDING).stem, "layer"}]
    (runtime, *_) = sorted(Path(os.environ["CUDA_HOME"]).glob("lib*/libcudart.so*"))
    run(["c++", *map(str, weak), *others, "-shared", "-s", str(runtime), "-o", str(library)])
    if missing := list_missing(library):
        raise SystemExit(f"{library} lacks {missing[0]}, and {len(missing) - 1} more")


def list_missing(library: Path) -> list[str]:
    """What a library calls of FlashInfer's and does not hold, but for runners of other types than the layer's."""
    words = ["nm", "--dynamic", "--undefined-only", "--demangle", str(library)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    kinds = [line.strip().partition(" ") for line in lines if "tensorrt_llm" in line]
    return [name for kind, _, name in kinds if kind == "U" or f"<{TYPES}" in name or "Runner<" not in name]


def pack(library: Path, version: str, archive: Path) -> None:
    """Put the library into the package that FlashInfer asks for it, as a release laid over the bundle."""
    with lzma.open(archive, "wb", filters=FILTERS) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        add(tar, GONE, b"")
        add(tar, "flashinfer_jit_cache/__init__.py", PACKAGE.format(name=NAME, version=version).encode())
        add(tar, f"flashinfer_jit_cache/jit_cache/{NAME}/{NAME}.so", library.read_bytes())


def main() -> None:
    """Compile what is not compiled, link it and pack it."""
    sources, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    planned = plan(sources, folder)
    with ThreadPoolExecutor(int(sys.argv[3]) if len(sys.argv) > 3 else 1) as pool:
        list(pool.map(build, planned.values(), planned))
    library, archive = folder / f"{NAME}.so", folder / ARCHIVE
    link(list(planned), library)
    pack(library, import_module("flashinfer").__version__, archive)
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB of {library.stat().st_size / 2**20:.1f}")


if __name__ == "__main__":
    main()
