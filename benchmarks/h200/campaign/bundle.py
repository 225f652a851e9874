"""Pack SGLang 0.5.16 for an offline Hopper machine: one tar.xz, unpacked to a folder that goes first on PYTHONPATH.

    python -m benchmarks.h200.campaign.bundle sglang-0.5.16.tar.xz
    python -m benchmarks.h200.campaign.bundle sglang-0.5.17.tar.xz --release 0.5.17 --over sglang-0.5.16.tar.xz
    python -m benchmarks.h200.campaign.bundle vllm-0.26.0.tar.xz --release vllm-0.26.0 --over sglang-0.5.16.tar.xz
    python -m benchmarks.h200.campaign.bundle prefill-decode.tar.xz --release prefill-decode --over sglang-0.5.16.tar.xz
    python -m benchmarks.h200.campaign.bundle peers.tar.xz --release peers --over sglang-0.5.16.tar.xz

For Python 3.12 with torch 2.11 for CUDA 13 and Triton 3.6. `requirements.txt` beside this pins every wheel. Left out is what
the Triton path of attention never loads: FlashAttention 3 and FlashMLA, machine code of other architectures, CUTLASS' headers,
the diffusion server. So servers start with `--attention-backend triton --sampling-backend pytorch --grammar-backend none`.

Another release's archive holds only the files that differ from the bundle's, and the names of those that it lacks: `campaign.py
--release` lays it over a copy of the bundle's folder.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

from benchmarks.vllm.bundle import add, prune

PINS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What is laid over the bundle: the wheels that it lacks or has otherwise.

    Of the wheels of `parts` come only the files that match a pattern. The bundle's files whose names match a pattern of
    `hidden` are gone where no wheel brings them; `stand_ins` are files of no wheel.
    """

    wheels: tuple[str, ...]
    parts: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    stand_ins: Mapping[str, bytes] = field(default_factory=dict)


OVERLAYS = {
    # Releases, with what they pin otherwise by their Requires-Dist; all else that a server imports here is asked for alike.
    "0.5.15.post1": Overlay(wheels=("sglang==0.5.15.post1", "sglang-kernel==0.4.4", "flashinfer-python==0.6.12")),
    "0.5.17": Overlay(wheels=("sglang==0.5.17", "flashinfer-python==0.6.15.post1")),
    # A release of torch 2.13 over the kernels that torch 2.11 can load: no release that anybody has, but its Python. The
    # `triton_kernels` that it imports lie in the wheel of its own kernels, and are Python as well.
    "old-kernels-0.5.21": Overlay(
        wheels=("sglang==0.5.21", "flashinfer-python==0.6.18", "xgrammar==0.2.7", "compressed-tensors==0.18.0"),
        parts={"sglang-kernel==0.4.7": "triton_kernels/*"},
        hidden=("triton_kernels/*",),
    ),
    # The last vLLM whose wheel pins torch 2.11, and what its server imports that the bundle lacks or has too old. It ships a
    # `triton_kernels` of its own, and would take the bundle's.
    "vllm-0.26.0": Overlay(
        wheels=(
            "vllm==0.26.0",
            "annotated-doc==0.0.4",
            "blake3==1.0.11",
            "cachetools==8.0.1",
            "cbor2==6.2.1",
            "cloudpickle==3.1.2",
            "fastapi==0.136.0",
            "jmespath==1.0.1",
            "llguidance==1.7.6",
            "model-hosting-container-standards==0.1.16",
            "openai==2.25.0",
            "prometheus-client==0.26.0",
            "prometheus-fastapi-instrumentator==8.1.0",
            "py-cpuinfo==9.0.0",
            "sentencepiece==0.2.1",
            "starlette==1.0.1",
            "watchfiles==1.3.0",
        ),
        hidden=("triton_kernels/*",),
    ),
    # What the bundle's release asks for besides and runs the layer with: DeepGEMM, with the headers that it compiles against.
    "peers": Overlay(wheels=("sgl-deep-gemm==0.1.4.post1",)),
    # What the bundle's release needs besides for prefill and decode apart: of NIXL the way by UCX, for GPUs of one host, and
    # SGLang's mini balancer, which is Python. The Rust router beside it is imported for names of parsers alone.
    "prefill-decode": Overlay(
        wheels=("nixl==1.5.1", "nixl-cu13==1.5.1", "sglang-router==0.3.2"),
        stand_ins={"sglang_router/sglang_router_rs.py": b"def get_available_tool_call_parsers():\n    return []\n"},
    ),
}
GONE = ".gone"
"""The file of another release's archive that names what of the bundle that release lacks, a line each."""
PLATFORMS = tuple(
    f"manylinux{version}_x86_64" for version in ("2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_31", "_2_34")
)
LEFT_OUT = (
    "*.a",
    ".nixl_cu13.mesonpy.libs/plugins/lib[!p]*",
    ".nixl_cu13.mesonpy.libs/plugins/libplugin_[!U]*",
    "nixl_cu13.libs/libaio*",
    "nixl_cu13.libs/libaws*",
    "nixl_cu13.libs/libazure*",
    "nixl_cu13.libs/libcurl*",
    "nixl_cu13.libs/libgusli*",
    "nixl_cu13.libs/libnuma*",
    "nixl_cu13.libs/libs2n*",
    "nixl_cu13.libs/liburing*",
    "nixl_cu13.libs/libxml2*",
    "nixl_cu13.libs/libzstd*",
    "nixl_cu13.libs/nixl/*",
    "nixl_cu13.libs/ucx/*.la",
    "nixl_cu13.libs/ucx/libuct_ib*",
    "nixl_cu13.libs/ucx/libucx_perftest*",
    "nixl_cu13.scripts/*",
    "nixl_cu13-*.data/*",
    "nixl_ep*",
    "sgl_kernel/flash_ops*",
    "sgl_kernel/flashmla_ops*",
    "sgl_kernel/infllm_ops*",
    "sgl_kernel/sm100/*",
    "flashinfer/data/cutlass/*",
    "sglang/multimodal_gen/*",
    "sglang/srt/grpc/_core*",
    "sglang/srt/multimodal/_core*",
    "sglang/srt/server/_core*",
    "sglang_router/sglang_router_rs*",
    "torch_memory_saver_hook_mode_*cu12*",
    "vllm/_flashmla*",
    "vllm/_qutlass*",
    "vllm/third_party/deep_gemm/*",
    "vllm/third_party/fmha_sm100/*",
    "vllm/third_party/tml_fa4/*",
    "vllm/vllm-rs",
    "vllm/vllm_flash_attn/_vllm_fa3*",
    "vllm/vllm_flash_attn/cute/*",
    "wcwidth/*.so",
)
# Machine code for a GPU lies in these; their other libraries hold none.
FAT = ("sgl_kernel/*.so", "vllm/*.so")
# Shipped with the symbols of a debugger: of xgrammar's 53 MB 2 are code.
UNSTRIPPED = ("xgrammar/*.so", ".nixl_cu13.mesonpy.libs/*.so*", "nixl_cu13/*.so", "nixl_cu13.libs/*.so*")
# Of a match finder's memory only the archive's writer and reader know; larger than the archive's content gains nothing.
FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 256 * 2**20},)


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a file's name in its wheel matches one of the patterns."""
    return any(fnmatch(name, pattern) for pattern in patterns)


def download(folder: Path, *wanted: str) -> list[Path]:
    """Fetch the wheels that pip's words name, without their dependencies."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    fixed = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.12"]
    subprocess.run([*fixed, *platforms, "--dest", str(folder), *wanted], check=True)
    return sorted(folder.glob("*.whl"))


def shrink(name: str, content: bytes) -> bytes:
    """What of a wheel's file is of use there: one architecture's code, no symbols of a debugger."""
    if is_any(name, FAT):
        return prune(content)
    return strip(content) if is_any(name, UNSTRIPPED) else content


def strip(library: bytes) -> bytes:
    """A shared library without what only a debugger reads, by binutils' `strip`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(library)
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)  # noqa: S607 - binutils, wherever they lie
        return path.read_bytes()


def read_kept(wheels: Sequence[Path], parts: Mapping[str, str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Names and contents of what is kept of all wheels, in one order."""
    patterns = {pin.replace("-", "_").replace("==", "-"): pattern for pin, pattern in (parts or {}).items()}
    for wheel in sorted(wheels):
        pattern = patterns.get("-".join(wheel.name.split("-")[:2]), "*")
        with ZipFile(wheel) as files:
            for name in sorted(files.namelist()):
                if not name.endswith("/") and fnmatch(name, pattern) and not is_any(name, LEFT_OUT):
                    yield name, shrink(name, files.read(name))


def write(archive: Path, wheels: Sequence[Path]) -> None:
    """Put the kept files of all wheels into one tar.xz; the same wheels give the same bytes."""
    with lzma.open(archive, "wb", filters=FILTERS) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in read_kept(wheels):
            add(tar, name, content)


def write_over(archive: Path, wheels: Sequence[Path], bundle: Path, overlay: Overlay) -> None:
    """Put what makes something else of the bundle into one tar.xz: first the names of what is gone, then what differs."""
    partial = {pin.partition("==")[0].replace("-", "_") for pin in overlay.parts}
    digests, own = read_bundle(bundle, {wheel.name.partition("-")[0] for wheel in wheels} - partial)
    kept = dict(read_kept(wheels, overlay.parts)) | dict(overlay.stand_ins)
    gone = sorted((own | {name for name in digests if is_any(name, overlay.hidden)}) - kept.keys())
    with lzma.open(archive, "wb", filters=FILTERS) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        add(tar, GONE, "".join(f"{name}\n" for name in gone).encode())
        for name, content in kept.items():
            if digests.get(name) != hashlib.sha256(content).digest():
                add(tar, name, content)


def read_bundle(bundle: Path, packages: set[str]) -> tuple[dict[str, bytes], set[str]]:
    """A digest of each file of a bundle, and the names of the files that belong to some packages by their RECORD."""
    digests, own = {}, set()
    with tarfile.open(bundle) as tar:
        for member in tar:
            file = tar.extractfile(member)
            content = b"" if file is None else file.read()
            digests[member.name] = hashlib.sha256(content).digest()
            package, _, rest = member.name.partition("-")
            if package in packages and rest.endswith(".dist-info/RECORD"):
                own |= {row[0] for row in csv.reader(content.decode().splitlines())}
    return digests, own & digests.keys()


def main() -> None:
    """Fetch the wheels, or take those of a folder, and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--wheels", type=Path, help="a folder with the wheels, instead of fetching them")
    parser.add_argument("--release", choices=OVERLAYS, help="another release than the bundle's; needs --over")
    parser.add_argument("--over", type=Path, metavar="BUNDLE", help="the bundle that --release is laid over")
    options = parser.parse_args()
    if (options.release is None) != (options.over is None):
        parser.error("--release and --over belong together")
    wanted = (
        ("--requirement", str(PINS))
        if options.release is None
        else (*OVERLAYS[options.release].wheels, *OVERLAYS[options.release].parts)
    )
    with tempfile.TemporaryDirectory() as folder:
        wheels = sorted(options.wheels.glob("*.whl")) if options.wheels else download(Path(folder), *wanted)
        if options.over is None:
            write(options.archive, wheels)
        else:
            write_over(options.archive, wheels, options.over, OVERLAYS[options.release])
    print(f"{options.archive}: {options.archive.stat().st_size / 2**20:.1f} MiB from {len(wheels)} wheels")


if __name__ == "__main__":
    main()
