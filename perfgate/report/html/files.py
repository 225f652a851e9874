"""Links from a page to the raw files of a result folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from perfgate.report.html.page import SheetCell
from perfgate.results.raw.pack import locate

# What a folder may hold besides windows, in the order in which a reader would open it.
NAMES = (
    "scenario.toml",
    "matrix.toml",
    "session.json",
    "matrix.json",
    "verdict.json",
    "events.jsonl",
    "windows.jsonl",
    "raw.tar.xz",
    "telemetry.jsonl.gz",
    "answers.jsonl",
    "profiles.jsonl",
    "kernels.json",
    "table.md",
    "table.csv",
)
FOLDERS = ("baselines", "logs", "servers", "answers", "profiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawData:
    """The files of `folder`, as they are reached from a page that lies in `home`."""

    folder: Path
    home: Path

    def link(self, name: str) -> str:
        """The address of a file below the folder, or of the packed file that holds it.

        The page and the folder must keep their places to each other.
        """
        path = os.path.relpath(self.folder.absolute() / locate(self.folder, name), self.home.absolute())
        # Every letter that could end the path, or make it a scheme, is written as a number.
        return "./" + quote(Path(path).as_posix())

    def list_files(self) -> tuple[SheetCell, ...]:
        """Everything but windows, which stand in a table of their own."""
        found = [name for name in NAMES if (self.folder / name).is_file()]
        return tuple(SheetCell(text=name, href=self.link(name)) for name in (*found, *self._list_nested()))

    def list_traces(self) -> tuple[SheetCell, ...]:
        """The profiler's traces, which a viewer of traces opens."""
        return tuple(SheetCell(text=name, href=self.link(name)) for name in self._list_nested() if name.startswith("profiles/"))

    def _list_nested(self) -> Iterable[str]:
        for folder in FOLDERS:
            files = sorted(path for path in (self.folder / folder).rglob("*") if path.is_file())
            yield from (path.relative_to(self.folder).as_posix() for path in files)

    def name(self, source: str) -> str:
        """How a file is called below the folder, from where it was read."""
        path = Path(source)
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else path.name
