"""The gaps between tokens of one window, written so that they pack well, and back to the same bytes.

Requests that run in one batch see the same decode steps, so a request's gaps resemble those of the request before it. Gaps in
whole microseconds are therefore written as integer differences from the previous request's gaps. That halves a packed window.
A line whose gaps are finer than a microsecond, or that would not come back byte by byte, is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add

import orjson

TICKS_PER_S = 1_000_000
KEY = b'"itls":'
SEPARATORS = (",", ", ")
_DECODER = json.JSONDecoder()
_UNLIKE = re.compile(rb"(?<=[\[,-])(?:0\.0000[0-9]*|[0-9.]+e[-+]?[0-9]+)")
"""Numbers that orjson may write in another way than Python, which wrote what was packed: below a ten-thousandth, or huge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A line in the short form: its gaps stand at byte `at`, and `separator` stood between two numbers."""

    content: bytes
    at: int
    separator: str


def shorten_gaps(raw: bytes) -> Columns | None:
    """Write the gaps of a window as differences; None where that would not give back the same bytes."""
    key = raw.find(KEY)
    if key < 0:
        return None
    at = key + len(KEY)
    at += len(raw[at:]) - len(raw[at:].lstrip(b" "))
    try:
        gaps, end = _parse(raw, at)
        rows = list(_subtract([[round(gap_s * TICKS_PER_S) for gap_s in row] for row in gaps]))
    except (ValueError, TypeError, OverflowError):
        # No list of lists of numbers: what is wrong with it is for the reader of the window to say.
        return None
    content = raw[:at] + json.dumps(rows, separators=(",", ":")).encode() + raw[end:]
    written = (Columns(content=content, at=at, separator=separator) for separator in SEPARATORS)
    return next((columns for columns in written if restore_gaps(columns) == raw), None)


# A reader asks for a window twice: for its digest, then for its numbers.
@lru_cache(maxsize=2)
def restore_gaps(columns: Columns) -> bytes:
    """Give a line back as it was. Raise ValueError when it holds no differences at the place."""
    try:
        rows, end = _parse(columns.content, columns.at)
        gaps = [[tick / TICKS_PER_S for tick in row] for row in _add(rows)]
    except TypeError as error:
        raise ValueError(str(error)) from None
    text = orjson.dumps(gaps)
    # Few windows hold one, and looking at each number takes longer than all else here.
    if b"0.0000" in text or b"e" in text:
        text = _UNLIKE.sub(lambda found: repr(float(found[0])).encode(), text)
    return columns.content[: columns.at] + text.replace(b",", columns.separator.encode()) + columns.content[end:]


def _parse(content: bytes, at: int) -> tuple[list[list[float]], int]:
    # One character a byte, so that places in the text are places in the file.
    rows, end = _DECODER.raw_decode(content.decode("latin-1"), at)
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("expected a list for each request")
    return rows, end


def _subtract(rows: Iterable[Sequence[int]]) -> Iterator[list[int]]:
    before: Sequence[int] = ()
    for row in rows:
        yield [tick - other for tick, other in zip(row, before, strict=False)] + list(row[len(before) :])
        before = row


def _add(rows: Iterable[Sequence[float]]) -> Iterator[list[float]]:
    before: list[float] = []
    for row in rows:
        before = [*map(add, row, before), *row[len(before) :]]
        yield before
