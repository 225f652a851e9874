"""Interruptions that wait: a process that was started is written down before anything may end the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Interruption:
    """Raise what a signal handler wants raised, at once or, inside `defer`, at its end."""

    def __init__(self) -> None:
        """Nothing is deferred and nothing waits."""
        self._depth = 0
        self._pending: Exception | None = None

    def interrupt(self, error: Exception) -> None:
        """Raise `error` now, or keep it until the outermost `defer` ends."""
        if not self._depth:
            raise error
        self._pending = error

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Let no interruption in until the block ends."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth and self._pending is not None:
            error, self._pending = self._pending, None
            raise error


INTERRUPTION = Interruption()
"""The one of this process: signals are the process's, too."""
