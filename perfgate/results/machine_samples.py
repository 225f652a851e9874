"""The raw samples of a session's telemetry: a gzip member for each window, any of which may be torn by a crash.

A tool that unpacks the file as one stream stops at a torn member, and what a resumed session appended behind it is lost to it.
Here each member is unpacked by itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from perfgate.errors import EvidenceError
from perfgate.readers.bench_serving import read_fields
from perfgate.readers.request_details import MS_PER_S, parse_details
from perfgate.results.raw.pack import is_packed, read_raw
from perfgate.storage.bounded import require_bounded
from perfgate.storage.journal import read_bytes

TELEMETRY_FILE = "telemetry.jsonl.gz"
# How every member begins, for its time stamp is 0: by chance these eight bytes stand nowhere else.
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
PIECE_BYTES = 8
_GZIP = zlib.MAX_WBITS | 16
_SAMPLE = b'{"at_s":'


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSamples:
    """The windows whose samples are whole, as they were written, and what is lost.

    `torn` counts windows whose member is cut or damaged. `lost` counts the samples that can still be seen in them: there
    were at least so many.
    """

    windows: tuple[Mapping[str, Any], ...]
    torn: int = 0
    lost: int = 0

    @property
    def count(self) -> int:
        """How many samples the whole windows hold, of the machine and of the engine."""
        return sum(len(window.get(kind, ())) for window in self.windows for kind in ("ticks", "engine"))


def read_machine_samples(folder: Path) -> MachineSamples:
    """Read the samples of a result folder. Raise EvidenceError when it keeps none."""
    path = folder / TELEMETRY_FILE
    if is_packed(folder, TELEMETRY_FILE):
        lines = read_raw(path).splitlines()
        return MachineSamples(windows=tuple(window for line in lines if (window := _parse(line)) is not None))
    if not path.exists():
        raise EvidenceError(f"{path}: no such file, so this session's samples were not kept; export its windows with --csv")
    windows: list[Mapping[str, Any]] = []
    torn = lost = 0
    for member in _split(read_bytes(path)):
        text, is_whole = _unpack(member)
        window = _parse(text) if is_whole else None
        if window is not None:
            windows.append(window)
        else:
            torn, lost = torn + 1, lost + text.count(_SAMPLE)
    return MachineSamples(windows=tuple(windows), torn=torn, lost=lost)


def _split(content: bytes) -> Iterator[bytes]:
    """Cut the file where a member begins; what stands before the first one, if anything, is a damaged one."""
    first, *members = content.split(_HEADER)
    if first:
        yield first
    yield from (_HEADER + member for member in members)


def _unpack(member: bytes) -> tuple[bytes, bool]:
    """The text of a member as far as it can be had, and whether that is all of it."""
    unpacker = zlib.decompressobj(wbits=_GZIP)
    text = bytearray()
    try:
        # In small pieces: what comes out of the one with the damage is lost.
        for start in range(0, len(member), PIECE_BYTES):
            text += unpacker.decompress(member[start : start + PIECE_BYTES])
            require_bounded(len(text), TELEMETRY_FILE)
    except zlib.error:
        return bytes(text), False
    return bytes(text), unpacker.eof and not unpacker.unused_data


def _parse(text: bytes) -> Mapping[str, Any] | None:
    try:
        window = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return window if isinstance(window, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Sorted latencies in milliseconds: one TTFT for each request that saw a token, one ITL for each gap between tokens."""

    ttft_ms: NDArray[np.float64]
    itl_ms: NDArray[np.float64]


def read_samples(file: Path | str) -> Samples | None:
    """Read the raw latencies of one window; None where the load generator kept none, or what it kept cannot be read."""
    try:
        details = parse_details(read_fields(Path(file)), str(file))
    except EvidenceError:
        # The same damage is a problem of the session, which says it with its file and line.
        return None
    if details is None:
        return None
    ttft_ms = details.ttft_s[details.ttft_s > 0] * MS_PER_S
    return Samples(ttft_ms=np.sort(ttft_ms), itl_ms=np.sort(details.itl_s * MS_PER_S))


def pool_samples(parts: Iterable[Samples]) -> Samples:
    """All latencies of several windows in one order."""
    found = tuple(parts)
    nothing = np.empty(0)
    return Samples(
        ttft_ms=np.sort(np.concatenate([nothing, *(part.ttft_ms for part in found)])),
        itl_ms=np.sort(np.concatenate([nothing, *(part.itl_ms for part in found)])),
    )
