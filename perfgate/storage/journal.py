"""Files that survive a crash: whole or not there, and appended line by line."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator

from perfgate.errors import EvidenceError
from perfgate.storage.bounded import read_bounded
from perfgate.storage.schema import check_value, dump, parse_json
from perfgate.storage.stream import STREAM, open_file, write_stream

T = TypeVar("T")
DAMAGED = "the folder was damaged, measure again"
"""What is to be done about a file of a result folder that is not as perfgate writes it."""

WINDOW_DIR = "windows"


_UTC = "%Y-%m-%dT%H:%M:%SZ"


def write_utc(moment: datetime | None = None) -> str:
    """A time in UTC as our files and comments have it, so that the order of texts is that of times; without one, now."""
    return (moment or datetime.now(UTC)).strftime(_UTC)


def read_utc(text: str) -> datetime:
    """The moment that `write_utc` wrote. Raise ValueError for any other text."""
    with suppress(ValueError):
        moment = datetime.strptime(text, _UTC).replace(tzinfo=UTC)
        # Seconds of a session are added to it, and the calendar ends with the year 9999.
        if write_utc(moment) == text and moment.year < 9000:
            return moment
    raise ValueError(f"{text[:40]!r} is no time such as 2026-01-31T09:30:00Z")


def _check_utc(text: str) -> str:
    read_utc(text)
    return text


Time = Annotated[str, AfterValidator(_check_utc)]
"""A field for what `write_utc` wrote."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that no reader ever sees half of it, and that it survives a power cut.

    `-` is standard output.
    """
    if path == STREAM:
        write_stream(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_packed(path: Path, content: bytes) -> str:
    """Write `content` compressed, whole or not at all, into a folder that may have to be made; return the file's SHA-256."""
    # A fixed time stamp keeps equal bytes equal.
    packed = gzip.compress(content, compresslevel=6, mtime=0)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, packed)
    return hashlib.sha256(packed).hexdigest()


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk: a file that was synced can still lose its name in a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one JSON line; it is on disk when the call returns, and not in the file at all when the call raises anything."""
    is_new = not path.exists()
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        left = memoryview(orjson.dumps(line) + b"\n")
        try:
            # A disk that is nearly full takes a part of the line and says so by the count alone.
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except BaseException:
            # An interruption too: the next line must not stand behind half of this one.
            file.truncate(before)
            raise
    if is_new:
        sync_folder(path.parent)


def append_record(path: Path, record: object) -> None:
    """Append a record as one line; a line that was being written when a run died is taken away before."""
    cut_torn_line(path)
    append_line(path, dump(record))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield JSON objects; a last line without its newline was being written when the run died, and is no line."""
    if not path.exists():
        return
    *lines, _torn = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise EvidenceError(f"{path}:{number}: not valid JSON ({error}); {DAMAGED}") from None
        if not isinstance(value, dict):
            raise EvidenceError(f"{path}:{number}: expected a JSON object; {DAMAGED}")
        yield value


def read_json(path: Path, kind: type[T], hint: str) -> T:
    """Read one JSON file of a folder. Raise EvidenceError with file, field and `hint` for what is no `kind`."""
    return parse_json(read_bytes(path), kind, path, hint)


def read_records(path: Path, kind: type[T], hint: str) -> list[T]:
    """Read the lines of a journal; none where it is missing. Raise EvidenceError with line, field and `hint`."""
    return [check_value(line, kind, f"{path}:{number}", hint) for number, line in enumerate(read_lines(path), start=1)]


def read_bytes(path: Path) -> bytes:
    """Read a file of a result folder. Raise EvidenceError naming it when that cannot be done, or when it has no end."""
    try:
        with open_file(path) as file:
            return read_bounded(file, path)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from None


def cut_torn_line(path: Path) -> int:
    """Take a last line without its newline away, so that the next one stands alone; return how many bytes it had."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        file.truncate(whole)
        os.fsync(file.fileno())
    return len(content) - whole


def cut_torn_member(path: Path) -> int:
    """Take a gzip member that was being written when the run died off the end of a file of such members; return its bytes.

    No reader of gzip finds the member that follows half a member. What is damaged otherwise is left as it is.
    """
    if not path.exists():
        return 0
    left = content = read_bytes(path)
    try:
        while left:
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            member.decompress(left)
            if not member.eof:
                os.truncate(path, len(content) - len(left))
                return len(left)
            left = member.unused_data
    except zlib.error:
        pass
    return 0


def explain_stop(folder: Path, error: OSError) -> EvidenceError:
    """Say that the operating system refused something, a full disk above all, and how to go on afterwards."""
    return EvidenceError(
        f"{folder}: stopped, {error.strerror} ({error.filename or 'in the folder'}); correct that, then continue with --resume"
    )


class WindowFiles:
    """The raw output of windows, a numbered file each; no number is given twice, not even after a crash."""

    def __init__(self, folder: Path) -> None:
        """Go on behind the highest number in use. Raise OSError when the folder cannot be made."""
        self._folder = folder
        (folder / WINDOW_DIR).mkdir(exist_ok=True)
        used = (path.name.split(".")[0] for path in (folder / WINDOW_DIR).glob("[0-9]*.jsonl.gz"))
        # Who copies a folder leaves names as `0001 (copy)`.
        self._next = max((int(name) for name in used if name.isdecimal()), default=-1) + 1

    def add(self, raw: bytes) -> tuple[str, str]:
        """Store one window's output; return its name below the folder and its SHA-256."""
        name = f"{WINDOW_DIR}/{self._next:04d}.jsonl.gz"
        digest = write_packed(self._folder / name, raw)
        self._next += 1
        return name, digest
