"""What a person or a CI log sees while a session runs; the session itself prints nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape


class Progress(Protocol):
    """A receiver of progress messages."""

    def step(self, text: str) -> None:
        """Something was begun or finished: one line that stays."""

    def wait(self, text: str) -> None:
        """A wait continues: a line that may be overwritten."""


class PlainProgress:
    """One line a step with the elapsed time, and a sign of life each `interval_s`: made for CI logs and pipes."""

    def __init__(self, stream: TextIO | None = None, interval_s: float = 10.0) -> None:
        """Write to `stream`, standard error by default."""
        self._stream = stream or sys.stderr
        self._interval_s = interval_s
        self._begun = self._last = time.monotonic()

    def step(self, text: str) -> None:
        """Print a line."""
        self._last = time.monotonic()
        minutes, seconds = divmod(int(self._last - self._begun), 60)
        print(f"[{minutes:2d}:{seconds:02d}] {text}", file=self._stream, flush=True)

    def wait(self, text: str) -> None:
        """Print a line only when nothing was printed for a while."""
        if time.monotonic() - self._last >= self._interval_s:
            self.step(text)


class RichProgress:
    """A spinner with the current activity under the lines that stay: made for a terminal."""

    def __init__(self) -> None:
        """Start the spinner on standard error."""
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("starting")
        self._begun = time.monotonic()
        self._status.start()

    def step(self, text: str) -> None:
        """Print a line above the spinner."""
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        # What a server or a file says is no markup of ours.
        self._console.print(f"[dim]{minutes:2d}:{seconds:02d}[/dim] {escape(text)}", markup=True)
        self._status.update("...")

    def wait(self, text: str) -> None:
        """Change the text beside the spinner."""
        self._status.update(escape(text))

    def close(self) -> None:
        """Take the spinner away."""
        self._status.stop()


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Choose the progress display for where standard error goes, and take it down again."""
    if not sys.stderr.isatty():
        yield PlainProgress()
        return
    progress = RichProgress()
    try:
        yield progress
    finally:
        progress.close()
