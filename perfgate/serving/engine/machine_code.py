"""The machine code of compiled kernels: what of a cubin runs, without the paths of sources that compilers write beside it."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "TRITON_CACHE_DIR"
DIGITS = 16

_ELF64 = b"\x7fELF\x02\x01"
_HEADER, _SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<II8xQQQ")
_EMPTY = 8
_RUNS = (b".text.", b".nv.constant", b".nv.info.")
"""Sections of the instructions, of the constants and of what a launch needs; the others hold symbols and lines of sources."""


def read_codes(variables: Mapping[str, str]) -> Mapping[str, tuple[str, ...]] | None:
    """The digests of the compiled kernels in an arm's own Triton cache, by name; None where its variables name no cache.

    A kernel has a digest for each of its files. One that goes away while it is looked at counts as not there.
    """
    place = variables.get(VARIABLE)
    if place is None:
        return None
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in Path(place).rglob("*.cubin"):
        with suppress(FileNotFoundError):
            found[path.stem].append(digest_code(path.read_bytes()))
    return {name: tuple(sorted(digests)) for name, digests in found.items()}


def digest_code(content: bytes) -> str:
    """A digest of what runs of a cubin, an ELF file of 64 bits; of any other file that of all its bytes.

    Equal sources compiled in two folders differ as files by the folders' names in their tables of lines.
    """
    try:
        sections = sorted((name, data) for name, data in _list_sections(content) if name.startswith(_RUNS))
    except (struct.error, IndexError, ValueError):
        sections = []
    digest = hashlib.sha256()
    for name, data in sections or [(b"", content)]:
        digest.update(b"%d %s %d " % (len(name), name, len(data)) + data)
    return digest.hexdigest()[:DIGITS]


def combine(digests: Iterable[str]) -> str:
    """One digest for several; what stands there twice counts once."""
    return hashlib.sha256("".join(sorted(set(digests))).encode()).hexdigest()[:DIGITS]


def _list_sections(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The name and the bytes of each section of an ELF file (System V ABI, 4); nothing of another file."""
    if not content.startswith(_ELF64):
        return
    begin, size, count, names = _HEADER.unpack_from(content)
    rows = [_SECTION.unpack_from(content, begin + number * size) for number in range(count)]
    table = rows[names][3]
    for name, kind, _, offset, length in rows:
        start = table + name
        yield content[start : content.index(b"\0", start)], b"" if kind == _EMPTY else content[offset : offset + length]
