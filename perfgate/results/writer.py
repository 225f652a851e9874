"""Append to a result folder: each window, event and problem is on disk before the call returns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import orjson

from perfgate.errors import EvidenceError
from perfgate.results.records import EVENTS_FILE, INDEX_FILE, LOG_DIR, SESSION_LAYOUT, FolderLayout, FolderRecord
from perfgate.storage.journal import WindowFiles, append_line, cut_torn_line, write_atomically
from perfgate.storage.schema import adapt, dump


class ResultWriter:
    """Append windows and events to the folder of a session or a matrix.

    Each is on disk before the call returns, or OSError is raised.
    """

    def __init__(self, folder: Path, layout: FolderLayout = SESSION_LAYOUT) -> None:
        """Write behind what `folder` holds; a last line that was being written when a run died is taken away."""
        self.folder = folder
        self._line = layout.line
        self.logs.mkdir(exist_ok=True)
        for name in (INDEX_FILE, EVENTS_FILE):
            cut_torn_line(folder / name)
        self._files = WindowFiles(folder)

    @classmethod
    def create(cls, folder: Path, record: FolderRecord, text: str, layout: FolderLayout = SESSION_LAYOUT) -> Self:
        """Begin a folder. Raise EvidenceError if it was begun already, since results are never overwritten, or not writable."""
        _begin(folder, layout, text, record)
        return cls(folder, layout)

    @property
    def logs(self) -> Path:
        """The folder for logs of servers and load generators."""
        return self.folder / LOG_DIR

    def add_event(self, event: str, at_s: float, **facts: str | float | Sequence[str] | None) -> None:
        """Append one line to the event log."""
        append_line(self.folder / EVENTS_FILE, {"event": event, "at_s": round(at_s, 6), **facts})

    def add_window(self, raw: bytes, **place: Any) -> Path:
        """Store the load generator's output `raw`, then its index line, and return the file; `place` fills the entry."""
        name, digest = self._files.add(raw)
        entry = adapt(self._line).validate_python({"file": name, "sha256": digest, **place})
        append_line(self.folder / INDEX_FILE, dump(entry))
        return self.folder / name

    def add_problem(self, message: str, at_s: float) -> None:
        """Record a fact that voids the session; the reader turns it into an INVALID verdict."""
        self.add_event("problem", at_s, message=message)


def _begin(folder: Path, layout: FolderLayout, text: str, record: FolderRecord) -> None:
    record = replace(record, text_sha256=hashlib.sha256(text.encode()).hexdigest())
    content = orjson.dumps(dump(record), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
    try:
        if (folder / layout.record_file).exists():
            raise EvidenceError(f"{folder}: already holds a {layout.what}; continue with --resume, or give a new folder")
        if any((folder / name).exists() for name in (INDEX_FILE, EVENTS_FILE)):
            raise EvidenceError(f"{folder}: already holds other results than a {layout.what}; give a new folder")
        (folder / LOG_DIR).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / layout.text_file, text.encode())
        # The record comes last: it marks the folder as begun.
        write_atomically(folder / layout.record_file, content)
    except OSError as error:
        raise EvidenceError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error
