"""Standard input and standard output, which a user names `-` in place of a file."""

from __future__ import annotations

import io
import sys
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TextIO

from perfgate.storage.bounded import read_bounded

STREAM = Path("-")


def open_file(path: Path) -> BinaryIO:
    """Open a file that a user named, or standard input for `-`. Each reader of `-` gets its whole content."""
    return io.BytesIO(_read_once(sys.stdin)) if path == STREAM else path.open("rb")


def read_text(path: Path) -> str:
    """Read such a file as UTF-8."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8") as file:
        return file.read()


def write_stream(content: bytes) -> None:
    """Write to standard output, behind what was printed before."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


@lru_cache(maxsize=1)
def _read_once(stream: TextIO) -> bytes:
    return read_bounded(stream.buffer, STREAM)
