"""The raw files of a result folder, wherever they lie: each by itself, or all of them in `raw.tar.xz`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from perfgate.evidence import Damage, DamageKind
from perfgate.results.raw.pack import PACK_FILE, read_pack
from perfgate.storage.bounded import read_bounded, unpack_gzip
from perfgate.storage.journal import read_bytes

GZIP_MAGIC = b"\x1f\x8b"


def find_damage(folder: Path, file: str, sha256: str) -> Damage | None:
    """How a raw file differs from what the index says of it; None for one that is as it was written.

    Raise EvidenceError when the file, or the packed file that holds it, cannot be read at all.
    """
    path = folder / file
    if not path.exists():
        if pack := read_pack(folder):
            return pack.find_damage(file, sha256)
        return Damage(kind=DamageKind.MISSING, file=file)
    if hashlib.sha256(read_bytes(path)).hexdigest() != sha256:
        return Damage(kind=DamageKind.CHANGED, file=file)
    return None


def is_packed(folder: Path, file: str) -> bool:
    """True when the file lies in `raw.tar.xz` alone."""
    if (folder / file).exists():
        return False
    pack = read_pack(folder)
    return pack is not None and file in pack.files


def read_raw(path: Path) -> bytes:
    """The unpacked content of a raw file, one folder deep in a result folder or at its top.

    Raise FileNotFoundError when it lies nowhere, EvidenceError for a packed one that is not as it was or one beyond the limit
    of `perfgate.storage.bounded`, and OSError, EOFError or zlib.error for a file that cannot be unpacked.
    """
    for folder in () if path.exists() else path.parents[:2]:
        pack = read_pack(folder)
        name = path.relative_to(folder).as_posix()
        if pack is not None and name in pack.files:
            return pack.read(name)
    with path.open("rb") as file:
        content = read_bounded(file, path)
    return unpack_gzip(content, path) if content.startswith(GZIP_MAGIC) else content


def list_raw(folder: Path, pattern: str) -> list[str]:
    """Name the raw files of a folder that match a pattern, such as `servers/start-*.json`, in order."""
    pack = read_pack(folder)
    packed = (name for name in pack.files if Path(name).match(pattern)) if pack else ()
    return sorted({path.relative_to(folder).as_posix() for path in folder.glob(pattern)} | set(packed))


def locate(folder: Path, file: str) -> str:
    """The name of what holds a raw file: its own, or that of the packed file."""
    return PACK_FILE if not (folder / file).exists() and (folder / PACK_FILE).exists() else file
