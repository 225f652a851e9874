"""Standard input and standard output, which a user names `-` in place of a file."""

from __future__ import annotations

import io
import sys
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TextIO

from perfgate.errors import InputError
from perfgate.storage.bounded import MOST_WRITTEN_BYTES, read_bounded

STREAM = Path("-")


def open_file(path: Path) -> BinaryIO:
    """Open a file that a user named, or standard input for `-`. Each reader of `-` gets its whole content."""
    return io.BytesIO(_read_once(sys.stdin)) if path == STREAM else path.open("rb")


def read_written(path: Path) -> bytes:
    """Read such a file where it is no log or trace. Raise InputError for one with more bytes than any such file has."""
    with open_file(path) as file:
        content = file.read(MOST_WRITTEN_BYTES + 1)
    if len(content) > MOST_WRITTEN_BYTES:
        raise InputError(f"{path}: holds more than {MOST_WRITTEN_BYTES >> 20} MiB, which is not read; give the right file")
    return content


def read_text(path: Path) -> str:
    """Read it as UTF-8."""
    with io.TextIOWrapper(io.BytesIO(read_written(path)), encoding="utf-8") as file:
        return file.read()


def write_stream(content: bytes) -> None:
    """Write to standard output, behind what was printed before."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


@lru_cache(maxsize=1)
def _read_once(stream: TextIO) -> bytes:
    return read_bounded(stream.buffer, STREAM)
