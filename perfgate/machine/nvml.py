"""The GPUs under test as NVML sees them: clocks, power, heat, memory, and who computes on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pynvml

from perfgate.errors import TelemetryError

# The board's power limit shapes the boost clock of healthy GPUs: an H200 reports it in a third of the samples of any window
# with prefills, at a median clock that never moves. It is told and voids nothing; where it slows one arm, their clocks differ.
POWER_CAP = 0x04
HEAT = 0x20 | 0x40
# A hardware slow-down is heat or power, the bit does not say which; a power brake comes from the power supply.
THROTTLES = 0x08 | HEAT | 0x80

PROCESSES = "pids"
_RANK_OPTIONS = ("--tp", "--tp-size", "-tp", "--tensor-parallel-size", "--pp-size", "-pp", "--pipeline-parallel-size")
_DATA_OPTIONS = ("--dp", "--dp-size", "-dp", "--data-parallel-size")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """What one GPU said at one moment.

    `values` has sm_clock_mhz, memory_clock_mhz, power_w, temperature_c and memory_used_bytes, each only where this GPU can
    tell it. `reasons` are NVML's bits that say why clocks are held back. `pids` computed on it, numbered as NVML numbers them.
    """

    values: Mapping[str, float]
    reasons: int | None
    pids: tuple[int, ...] | None


_READERS: dict[str, Callable[[Any, Any], float]] = {
    "sm_clock_mhz": lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
    "power_w": lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    "temperature_c": lambda nvml, device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
    "memory_used_bytes": lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).used,
}


class GpuMonitor:
    """An open NVML and the devices that are watched. `unsupported` names what these devices cannot tell at all."""

    def __init__(self, nvml: Any, devices: Sequence[Any]) -> None:
        """Ask each device once for everything, to learn what it cannot tell. Raise TelemetryError if it fails otherwise."""
        self._nvml = nvml
        self._devices = tuple(devices)
        readers = {**_READERS, "reasons": _read_reasons, PROCESSES: _read_pids}
        self.unsupported = frozenset(name for name, read in readers.items() if not self._can(read))

    @classmethod
    def open(cls, devices: Sequence[str]) -> Self | None:
        """Open NVML for `devices` (indices or UUIDs); None on a machine without an NVIDIA driver.

        Raise TelemetryError where there is a driver and it does not answer: a GPU that nobody can watch proves nothing.
        """
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):  # type: ignore[attr-defined, unused-ignore]
            return None
        except pynvml.NVMLError as error:
            raise _explain(error) from None
        try:
            if pynvml.nvmlDeviceGetCount() == 0:
                pynvml.nvmlShutdown()
                return None
            return cls(pynvml, [_find(pynvml, device) for device in devices])
        except pynvml.NVMLError as error:
            raise _explain(error) from None

    @property
    def count(self) -> int:
        """How many devices are watched."""
        return len(self._devices)

    def read(self) -> tuple[DeviceSample, ...]:
        """Ask every device for everything that it can tell. Raise TelemetryError if one fails to."""
        try:
            return tuple(self._read_one(device) for device in self._devices)
        except self._nvml.NVMLError as error:
            raise _explain(error) from None

    def read_uuids(self) -> tuple[str, ...]:
        """Name every device for good: an index means another GPU where fewer are visible."""
        return tuple(str(self._nvml.nvmlDeviceGetUUID(device)) for device in self._devices)

    def close(self) -> None:
        """Let NVML go; what fails here is no longer anybody's measurement."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _read_one(self, device: Any) -> DeviceSample:
        known = {name: read for name, read in _READERS.items() if name not in self.unsupported}
        return DeviceSample(
            values={name: float(read(self._nvml, device)) for name, read in known.items()},
            reasons=None if "reasons" in self.unsupported else _read_reasons(self._nvml, device),
            pids=None if PROCESSES in self.unsupported else _read_pids(self._nvml, device),
        )

    def _can(self, read: Callable[[Any, Any], object]) -> bool:
        nvml = self._nvml
        try:
            for device in self._devices:
                read(nvml, device)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
            nvml.NVMLLibraryMismatchError,
        ):
            return False
        return True


def list_devices(args: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Name the devices that a server started with `args` and `env` will use, as CUDA_VISIBLE_DEVICES would.

    One GPU for each tensor, pipeline and data parallel rank, from `--base-gpu-id` on; with DP attention the data ranks share
    the tensor ranks' GPUs.
    """
    count = _product(args, _RANK_OPTIONS)
    if "--enable-dp-attention" not in args:
        count *= _product(args, _DATA_OPTIONS)
    first = _number(args, "--base-gpu-id", 0)
    visible = {**os.environ, **env}.get("CUDA_VISIBLE_DEVICES", "").strip()
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(first + count)]
    return tuple(names[first : first + count])


def find_uuids(devices: Sequence[str]) -> tuple[str, ...] | None:
    """The UUIDs of devices that are named by index or UUID; None where no NVIDIA driver can be asked."""
    try:
        monitor = GpuMonitor.open(devices)
    except TelemetryError:
        # The session itself says later what is wrong with the driver.
        return None
    if monitor is None:
        return None
    try:
        return monitor.read_uuids()
    finally:
        monitor.close()


def _product(args: Sequence[str], options: Sequence[str]) -> int:
    result = 1
    for option in options:
        result *= _number(args, option, 1)
    return result


def _number(args: Sequence[str], option: str, default: int) -> int:
    """Read an option's number, given as two words or as one with an equals sign; the last one counts."""
    words = [word for argument in args for word in argument.split("=", 1)]
    places = [place for place, word in enumerate(words[:-1]) if word == option and words[place + 1].isdecimal()]
    return int(words[places[-1] + 1]) if places else default


def _find(nvml: Any, device: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(device)) if device.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(device)


def _read_reasons(nvml: Any, device: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(device))
    except nvml.NVMLError_FunctionNotFound:
        # Drivers before 535 know it by its older name only.
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))


def _read_pids(nvml: Any, device: Any) -> tuple[int, ...]:
    """List who computes on a device; a process that the driver hides behind number 0 is not countable."""
    return tuple(sorted({process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)} - {0}))


def _explain(error: Exception) -> TelemetryError:
    return TelemetryError(f"NVML failed: {error}; look into the kernel's log (dmesg), then measure again")
