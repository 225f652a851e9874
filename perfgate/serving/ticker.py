"""A function called again and again in the background, with every answer and every failure kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from perfgate.errors import TelemetryError

T = TypeVar("T")
STOP_TIMEOUT_S = 10.0


class Ticker(Generic[T]):
    """Calls `read` every `period_s`, first after `delay_s`, from `start` to `stop`.

    `answers` are pairs of the seconds since `start` and what was read; `failures` are the messages of TelemetryErrors.
    """

    def __init__(self, read: Callable[[], T], period_s: float, delay_s: float = 0.0) -> None:
        """Describe the calls; nothing happens before `start`."""
        self.answers: list[tuple[float, T]] = []
        self.failures: list[str] = []
        self._read = read
        self._period_s = period_s
        self._delay_s = delay_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="perfgate telemetry")
        self._defect: Exception | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the call in flight. A call that never comes back is a failure, and an error of ours is raised here."""
        self._over.set()
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self.failures.append(f"no answer within {STOP_TIMEOUT_S:.0f} s")
        if self._defect is not None:
            raise self._defect

    def _run(self) -> None:
        begun = time.monotonic()
        due = begun + self._delay_s
        # What begins at once is owed one answer, however soon it is stopped.
        owed = self._delay_s == 0
        while owed or not self._over.wait(max(0.0, due - time.monotonic())):
            owed = False
            at_s = time.monotonic() - begun
            try:
                self.answers.append((at_s, self._read()))
            except TelemetryError as error:
                self.failures.append(str(error))
            except Exception as error:  # noqa: BLE001 - raised again by `stop`; a thread would swallow it
                self._defect = error
                return
            # A late call is not made up for: catching up would disturb more than the gap.
            due = max(due + self._period_s, time.monotonic())
