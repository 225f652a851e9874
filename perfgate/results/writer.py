"""Append to a result folder: each window, event and problem is on disk before the call returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import orjson

from perfgate.errors import EvidenceError
from perfgate.results.records import (
    EVENTS_FILE,
    INDEX_FILE,
    LOG_DIR,
    SCENARIO_FILE,
    SESSION_FILE,
    SessionRecord,
    WindowRecord,
)
from perfgate.storage.journal import WindowFiles, append_line, cut_torn_line, write_atomically
from perfgate.storage.schema import adapt, dump

Entry = TypeVar("Entry")


class FolderWriter(Generic[Entry]):
    """Append windows and events to a folder of raw windows; each is on disk before the call returns, or OSError is raised.

    `Entry` is a line of the folder's index: it takes the place of a window and says where its raw output lies.
    """

    def __init__(self, folder: Path, kind: type[Entry]) -> None:
        """Write behind what `folder` holds; a last line that was being written when a run died is taken away."""
        self.folder = folder
        self._kind = kind
        self.logs.mkdir(exist_ok=True)
        for name in (INDEX_FILE, EVENTS_FILE):
            cut_torn_line(folder / name)
        self._files = WindowFiles(folder)

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
        entry = adapt(self._kind).validate_python({"file": name, "sha256": digest, **place})
        append_line(self.folder / INDEX_FILE, dump(entry))
        return self.folder / name


class ResultWriter(FolderWriter[WindowRecord]):
    """The writer of one session."""

    def __init__(self, folder: Path) -> None:
        """Go on behind what the folder of a session holds."""
        super().__init__(folder, WindowRecord)

    @classmethod
    def create(cls, folder: Path, record: SessionRecord, scenario_text: str) -> Self:
        """Begin a session. Raise EvidenceError if the folder already holds one: results are never overwritten."""
        begin_folder(folder, "session", {SCENARIO_FILE: scenario_text.encode(), SESSION_FILE: format_record(dump(record))})
        return cls(folder)

    def add_problem(self, message: str, at_s: float) -> None:
        """Record a fact that voids the session; the reader turns it into an INVALID verdict."""
        self.add_event("problem", at_s, message=message)


def begin_folder(folder: Path, what: str, files: Mapping[str, bytes]) -> None:
    """Make the folder of a `what` with the files that say what is measured; the last of them marks it as begun.

    Raise EvidenceError where one was begun already, or where the folder cannot be written.
    """
    try:
        if (folder / list(files)[-1]).exists():
            raise EvidenceError(f"{folder}: already holds a {what}; go on with --resume, or give a new folder")
        (folder / LOG_DIR).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise EvidenceError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error


def format_record(content: Mapping[str, Any]) -> bytes:
    """Write what was fixed before the first window, with sorted keys."""
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
