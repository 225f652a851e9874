"""Which processes compute on the GPU: the session's own, or foreign ones.

NVML's numbers mean the session's processes only where both live in one namespace of process numbers. In a container an older
driver reports the numbers of the host, a newer one leaves out what the container cannot see, and some hide them all. So numbers
are compared with the session's own processes first, and where none of them appears, with what NVML showed before and after the
servers came up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Generic, TypeVar

from perfgate.errors import TelemetryError
from perfgate.machine.nvml import HEAT, POWER_CAP, THROTTLES, DeviceSample
from perfgate.results.readings import name_on_gpu

HIDDEN_BYTES = 2**30
"""Memory in use before any server started, beyond which a process that NVML hides must hold it; a driver alone takes less."""


@dataclass(slots=True)
class GpuProcesses:
    """What is known of the processes on the watched GPUs. `own` is asked for the session's part of a list of numbers."""

    adopted: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    hidden_bytes: float = 0.0

    def note_idle(self, pids: Collection[int], memory_used_bytes: float) -> None:
        """No server of ours lives: any process that computes now is foreign, whatever its number."""
        self.before, self.adopted = set(pids), set()
        self.hidden_bytes = 0.0 if pids else memory_used_bytes

    def note_ready(self, pids: Collection[int]) -> None:
        """A server of ours has come up: what is new since the GPU was idle is taken for its own.

        A foreign process that arrived in the meantime is adopted too where numbers mean nothing; that hole is documented.
        """
        self.adopted |= set(pids) - self.before

    def count_foreign(self, pids: Collection[int], own: Collection[int]) -> int:
        """Count the processes among `pids` that are not the session's; `own` are those that certainly are."""
        hidden = 1 if self.hidden_bytes > HIDDEN_BYTES else 0
        return max(len(self.list_foreign(pids, own)), hidden)

    def list_foreign(self, pids: Collection[int], own: Collection[int]) -> frozenset[int]:
        """The processes among `pids` that are not the session's, of those that NVML shows."""
        return frozenset(pids) - (set(own) if own else self.adopted)

    def is_visible(self, pids: Collection[int], own: Collection[int]) -> bool:
        """Whether NVML shows the session's own processes at all, by their numbers or by having come with a server."""
        return bool(own) or not self.adopted.isdisjoint(pids)


Reduce = Callable[[Sequence[float]], float]


def summarize_gpu(samples: Sequence[Sequence[DeviceSample]]) -> dict[str, float]:
    """Reduce samples, each of all devices in one order. What no device reports is absent, never zero.

    Several devices are reported together and each by itself, under the names of `name_on_gpu`.
    """
    if not samples:
        return {}
    tracks = [list(track) for track in zip(*samples, strict=True)]
    told = {
        "sm_clock_mhz": _across(tracks, "sm_clock_mhz", median, min),
        "sm_clock_min_mhz": _across(tracks, "sm_clock_mhz", min, min),
        "memory_clock_mhz": _across(tracks, "memory_clock_mhz", median, min),
        "power_w": _across(tracks, "power_w", fmean, sum),
        "power_max_w": _across(tracks, "power_w", max, max),
        "temperature_c": _across(tracks, "temperature_c", max, max),
        "gpu_memory_used_bytes": _across(tracks, "memory_used_bytes", max, max),
        "throttled_share": _share(samples, THROTTLES),
        "power_cap_share": _share(samples, POWER_CAP),
        "thermal_share": _share(samples, HEAT),
    }
    together = {name: value for name, value in told.items() if value is not None}
    return together | _summarize_each(tracks)


def _summarize_each(tracks: Sequence[Sequence[DeviceSample]]) -> dict[str, float]:
    """The same of each device, where there are several."""
    return {
        name_on_gpu(name, number): value
        for number, track in enumerate(tracks if len(tracks) > 1 else ())
        for name, value in summarize_gpu([(sample,) for sample in track]).items()
    }


def _across(tracks: Sequence[Sequence[DeviceSample]], name: str, over_time: Reduce, over_devices: Reduce) -> float | None:
    """Reduce one reading over the window for each device, then over the devices."""
    values = [[sample.values[name] for sample in track if name in sample.values] for track in tracks]
    told = [over_time(track) for track in values if track]
    return float(over_devices(told)) if told else None


def _share(samples: Sequence[Sequence[DeviceSample]], bits: int) -> float | None:
    """The share of moments at which any GPU was held back for one of these reasons."""
    told = [[device.reasons for device in sample if device.reasons is not None] for sample in samples]
    known = [reasons for reasons in told if reasons]
    return sum(any(reason & bits for reason in reasons) for reasons in known) / len(known) if known else None


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
