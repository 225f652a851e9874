"""Raw files of a session, each by itself or, once it is finished, all in `raw.tar.xz`: a tar archive, compressed as a whole.

Windows of one session resemble each other, so packing them together takes less than half of what they take one by one. The
first member, `files.jsonl`, has a line for each file: its name in the result folder, the SHA-256 of that file as the index
names it, and the SHA-256 of its unpacked content. The other members are the contents, under the same names without their `.gz`.
The gaps of a window may be written in columns (`perfgate.results.raw.gap_columns`); its line says so.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from perfgate.errors import EvidenceError
from perfgate.evidence import Damage, DamageKind
from perfgate.results.raw.gap_columns import SEPARATORS, Columns, restore_gaps, shorten_gaps
from perfgate.results.words import describe_damage
from perfgate.storage.bounded import read_bounded, require_bounded, unpack_gzip
from perfgate.storage.journal import read_bytes
from perfgate.storage.schema import STRICT, Sha256, dump, parse_json
from perfgate.storage.stream import STREAM, open_file

PACK_FILE = "raw.tar.xz"
INDEX_MEMBER = "files.jsonl"
PIECE_BYTES = 4096
GZIP_MAGIC = b"\x1f\x8b"


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class PackedFile:
    """One line of `files.jsonl`. `sha256` is that of the file as it lay in the folder, `raw_sha256` that of its content.

    `gaps_at` is the byte at which gaps stand in columns, -1 where they do not; `separator` is what stood between two of them.
    """

    file: str
    sha256: Sha256
    raw_sha256: Sha256
    gaps_at: Annotated[int, Field(ge=-1)] = -1
    separator: str = SEPARATORS[0]

    @property
    def member(self) -> str:
        """What its unpacked content is called in the archive."""
        return self.file.removesuffix(".gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """What could be read of a packed file: every line of its index, the members that came out, and whether that is all."""

    path: Path
    files: Mapping[str, PackedFile]
    members: Mapping[str, bytes]

    def find_damage(self, name: str, sha256: str | None = None) -> Damage | None:
        """How a file differs from what it was when it was packed, or from the `sha256` of the session's index."""
        found = self.files.get(name)
        if found is None:
            return Damage(kind=DamageKind.MISSING, file=name)
        if found.member not in self.members:
            return Damage(kind=DamageKind.TORN_PACK, file=name, detail=PACK_FILE)
        if sha256 not in (None, found.sha256) or self._restore(found) is None:
            return Damage(kind=DamageKind.CHANGED, file=name)
        return None

    def read(self, name: str) -> bytes:
        """The content of a file, unpacked. Raise EvidenceError naming it when it is not as it was."""
        if damage := self.find_damage(name):
            raise EvidenceError(f"{self.path.parent}: {describe_damage(damage)}")
        return self._restore(self.files[name]) or b""

    def _restore(self, found: PackedFile) -> bytes | None:
        """A member's content; None when that is not what was packed."""
        content = self.members[found.member]
        if found.gaps_at >= 0:
            try:
                content = restore_gaps(Columns(content=content, at=found.gaps_at, separator=found.separator))
            except ValueError:
                return None
        return content if hashlib.sha256(content).hexdigest() == found.raw_sha256 else None


def read_pack(folder: Path) -> Pack | None:
    """Open the packed file of a result folder; None when it has none. Raise EvidenceError when nothing can be read of it."""
    path = folder / PACK_FILE
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from None


# Every raw file of a session is asked for by itself, and the archive can only be unpacked as a whole.
@lru_cache(maxsize=2)
def _read(path: Path, changed_ns: int, size_bytes: int) -> Pack:
    del changed_ns, size_bytes
    members = dict(_list_members(_unpack(path), path))
    lines = members.pop(INDEX_MEMBER, None)
    if lines is None:
        raise EvidenceError(f"{path}: damaged or no packed session: {INDEX_MEMBER} cannot be read; copy it again")
    where = f"{path}: {INDEX_MEMBER}"
    files = [parse_json(line, PackedFile, where, "copy it again") for line in lines.splitlines()]
    return Pack(path=path, files={found.file: found for found in files}, members=members)


def _unpack(path: Path) -> bytes:
    """The archive as far as it can be had: what a torn or damaged file holds before the damage is still evidence."""
    content = read_bytes(path)
    unpacker, text = lzma.LZMADecompressor(format=lzma.FORMAT_XZ), io.BytesIO()
    try:
        for start in range(0, len(content), PIECE_BYTES):
            if unpacker.eof:
                break
            text.write(unpacker.decompress(content[start : start + PIECE_BYTES]))
            require_bounded(text.tell(), path)
    except lzma.LZMAError:
        pass
    return text.getvalue()


def _list_members(archive: bytes, path: Path) -> Iterator[tuple[str, bytes]]:
    total_bytes = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                if file is not None:
                    # What a sparse member says of its length has nothing to do with that of the archive.
                    require_bounded(total_bytes := total_bytes + member.size, path)
                    yield member.name, file.read()
    except tarfile.TarError:
        # The member in which the archive ends; those before it are whole.
        return


def build_pack(files: Iterable[tuple[str, str, bytes]]) -> bytes:
    """Write `raw.tar.xz` of files: the name, the SHA-256 as it lies in the folder, the unpacked content.

    Equal files make equal bytes.
    """
    index: list[PackedFile] = []
    members: list[tuple[str, bytes]] = []
    for name, sha256, raw in files:
        columns = shorten_gaps(raw)
        found = PackedFile(file=name, sha256=sha256, raw_sha256=hashlib.sha256(raw).hexdigest())
        index.append(replace(found, gaps_at=columns.at, separator=columns.separator) if columns else found)
        members.append((found.member, columns.content if columns else raw))
    lines = b"".join(orjson.dumps(dump(found)) + b"\n" for found in index)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in ((INDEX_MEMBER, lines), *members):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return lzma.compress(archive.getvalue(), format=lzma.FORMAT_XZ, preset=6)


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
    for folder in () if path == STREAM or path.exists() else path.parents[:2]:
        pack = read_pack(folder)
        name = path.relative_to(folder).as_posix()
        if pack is not None and name in pack.files:
            return pack.read(name)
    with open_file(path) as file:
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
