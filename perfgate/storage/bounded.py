"""Files that a person may have received: read up to a limit, unpacked as a stream, and none that lies outside of its folder."""

from __future__ import annotations

import gzip
import io
import stat
from pathlib import Path
from typing import BinaryIO

from perfgate.errors import EvidenceError

MOST_BYTES = 256 * 2**20
"""What one file may hold, unpacked. The largest of a recorded session, a profiler's trace, holds 7.5 million bytes."""

MOST_WRITTEN_BYTES = 16 * 2**20
"""What a scenario, settings, a lock file, a baseline or a proof may hold. The largest baseline that ships holds 63,459."""

MOST_LISTS = 4_000_000
"""Lists and objects of one JSON text: read, an empty one of two letters takes over thirty bytes a letter."""

_PIECE_BYTES = 2**20
ADVICE = "which is not read; measure fewer requests in a window, or delete it"


def read_bounded(file: BinaryIO | gzip.GzipFile, where: object) -> bytes:
    """Read a stream to its end. Raise EvidenceError for one that is longer than a file of a session may be."""
    content = bytearray()
    while piece := file.read(_PIECE_BYTES):
        content += piece
        require_bounded(len(content), where)
    return bytes(content)


def unpack_gzip(content: bytes, where: object) -> bytes:
    """Unpack a gzip file up to the limit.

    Raise EvidenceError for one that unpacks to more; gzip.BadGzipFile, EOFError or zlib.error for a damaged one.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return read_bounded(file, where)


def require_bounded(found_bytes: int, where: object) -> None:
    """Raise EvidenceError where a file holds more than the limit."""
    if found_bytes > MOST_BYTES:
        raise EvidenceError(f"{where}: holds more than {MOST_BYTES >> 20} MiB unpacked, {ADVICE}")


def require_few_lists(text: bytes, where: object) -> None:
    """Raise EvidenceError where a JSON text opens more lists and objects than the limit; brackets in its strings count, too."""
    if text.count(b"[") + text.count(b"{") > MOST_LISTS:
        raise EvidenceError(f"{where}: has more than {MOST_LISTS:,} lists and objects, {ADVICE}")


def require_plain(folder: Path) -> None:
    """Raise EvidenceError where a result folder holds a link, a pipe or a device: what is read must lie in the folder."""
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            what = "a link" if stat.S_ISLNK(mode) else "no plain file"
            raise EvidenceError(f"{path}: is {what}, and a result folder has files alone; copy the folder again with its files")
