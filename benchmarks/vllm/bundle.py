"""Pack what vLLM's Triton MoE layer needs for an offline Hopper machine: one tar.xz, unpacked to a folder of its own.

python benchmarks/vllm/bundle.py vllm.tar.xz

For Python 3.12 with torch 2.11 for CUDA 13 and triton 3.6, beside SGLang 0.5.16 and what it needs. README.md beside this tells
what is left out.
"""

from __future__ import annotations

import argparse
import io
import lzma
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

# vLLM, and what it imports that SGLang's own dependencies do not bring, or bring too old (openai).
PINS = (
    "vllm==0.32.0",
    "cachetools==8.0.1",
    "cbor2==6.2.1",
    "cloudpickle==3.1.2",
    "llguidance==1.7.6",
    "openai==2.25.0",
    "prometheus-client==0.26.0",
    "py-cpuinfo==9.0.0",
)
PLATFORMS = tuple(f"manylinux{version}_x86_64" for version in ("2014", "_2_17", "_2_28", "_2_31", "_2_34", "_2_39"))
LIBRARIES = ("vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so")
# Attention, other vendors' kernels with their C++ headers, and tiles for other devices.
LEFT_OUT = ("vllm/vllm_flash_attn/cute/", *(f"vllm/third_party/{name}/" for name in ("deep_gemm", "fmha_sm100", "tml_fa4")))
CONFIGS, DEVICE = "vllm/model_executor/layers/fused_moe/configs/", "device_name=NVIDIA_H200"
# An empty module where the package wants some FlashAttention before it can be imported; nothing of the MoE layer calls it.
PLACEHOLDER = "vllm/vllm_flash_attn/_vllm_fa2_C.py"
HOPPER = 90

# A fat binary is a header and entries, each with a header and one device's code: `__cudaRegisterFatBinary` reads them.
MAGIC = 0xBA55ED50
CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
ENTRY = struct.Struct("<HHIQ8xHHI")  # kind, version, bytes of this header, bytes of the code, minor, major, architecture
ELF = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a fat binary: what it holds, and its places in the file in bytes: of its header, of its code, of its end."""

    begin: int
    code: int
    end: int
    kind: int
    architecture: int


def entries(data: bytes, begin: int, end: int) -> Iterator[Entry]:
    """The entries between two places of a file. ValueError where they do not fill it: this is no fat binary."""
    while begin < end:
        kind, _, head, size, _, _, architecture = ENTRY.unpack_from(data, begin)
        code = begin + head
        yield Entry(begin=begin, code=code, end=code + size, kind=kind, architecture=architecture)
        begin = code + size
    if begin != end:
        raise ValueError(f"a fat binary's entries end at {begin}, and it at {end}")


def shrink(library: bytes, begin: int, end: int, architecture: int) -> bytes:
    """The entries with one architecture's machine code.

    Where there are none, one other device's stays, its code replaced by zeros: the driver then finds, as before, that there is
    nothing for this device. Without entries it would find a broken container.
    """
    every = list(entries(library, begin, end))
    machine = [one for one in every if one.kind == ELF]
    if own := [one for one in machine if one.architecture == architecture]:
        return b"".join(library[one.begin : one.end] for one in own)
    if not machine:
        return library[begin:end]
    other = min(machine, key=lambda one: one.end - one.begin)
    return library[other.begin : other.code].ljust(other.end - other.begin, b"\0")


def prune(library: bytes, architecture: int = HOPPER) -> bytes:
    """The shared library with other architectures' code gone: what is kept moves up, zeros follow, and nothing else moves."""
    pruned = bytearray(library)
    place = 0
    while (place := library.find(MAGIC.to_bytes(4, "little"), place)) >= 0:
        magic, version, head, size = CONTAINER.unpack_from(library, place)
        if head != CONTAINER.size:
            place += 4
            continue
        begin, end = place + head, place + head + size
        kept = shrink(library, begin, end, architecture)
        CONTAINER.pack_into(pruned, place, magic, version, head, len(kept))
        pruned[begin:end] = kept.ljust(size, b"\0")
        place = end
    return bytes(pruned)


def is_kept(name: str) -> bool:
    """Whether a file of a wheel goes into the archive."""
    if not name.startswith("vllm/"):
        return not name.endswith("/")
    if name.startswith(CONFIGS) and name.endswith(".json"):
        return DEVICE in name
    return name in LIBRARIES or (name.endswith((".py", ".json")) and not name.startswith(LEFT_OUT))


def download(folder: Path) -> list[Path]:
    """Fetch the pinned wheels, without their dependencies."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    fixed = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.12"]
    subprocess.run([*fixed, *platforms, "--dest", str(folder), *PINS], check=True)
    return sorted(folder.glob("*.whl"))


def write(archive: Path, wheels: list[Path]) -> None:
    """Put the kept files of all wheels into one tar.xz; the same wheels give the same bytes."""
    with lzma.open(archive, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        add(tar, PLACEHOLDER, b"")
        for wheel in wheels:
            with ZipFile(wheel) as files:
                for name in filter(is_kept, sorted(files.namelist())):
                    content = files.read(name)
                    add(tar, name, prune(content) if name in LIBRARIES else content)


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add one file, without the time or owner."""
    about = tarfile.TarInfo(name)
    about.size = len(content)
    tar.addfile(about, io.BytesIO(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--wheels", type=Path, help="a folder with the wheels, instead of fetching them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels = sorted(options.wheels.glob("*.whl")) if options.wheels else download(Path(folder))
        write(options.archive, wheels)
    print(f"{options.archive}: {options.archive.stat().st_size / 1e6:.1f} MB from {len(wheels)} wheels")


if __name__ == "__main__":
    main()
