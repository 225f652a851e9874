"""The GPUs under test as NVML sees them: clocks, power, heat, memory, and who computes on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import pynvml

from perfgate.engines.arguments import read_layout
from perfgate.errors import TelemetryError

# The board's power limit shapes the boost clock of healthy GPUs: an H200 reports it in a third of the samples of any window
# with prefills, at a median clock that never moves. It is shown and voids nothing; where it slows one arm, their clocks differ.
POWER_CAP = 0x04
HEAT = 0x20 | 0x40
# A hardware slow-down is heat or power, the bit does not say which; a power brake comes from the power supply.
THROTTLES = 0x08 | HEAT | 0x80

PROCESSES = "pids"
DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg", "accel/*", "davinci*", "mtgpu*")
"""What drivers of accelerators leave in /dev. A container may have a GPU and no NVML, and only NVIDIA has NVML."""
_NO_DRIVER = frozenset({"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"})
_CANNOT_TELL = frozenset(
    {
        "NVMLError_FunctionNotFound",
        "NVMLError_InvalidArgument",
        "NVMLError_NoPermission",
        "NVMLError_NotSupported",
        "NVMLLibraryMismatchError",
    }
)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """What one GPU reported at one moment.

    `values` has sm_clock_mhz, memory_clock_mhz, power_w, temperature_c and memory_used_bytes, each only where this GPU can
    tell it. `reasons` are NVML's bits that say why clocks are held back. `pids` computed on it, numbered as NVML numbers them.
    """

    values: Mapping[str, float]
    reasons: int | None
    pids: tuple[int, ...] | None


def ask(question: Callable[[], _Answer]) -> _Answer | None:
    """Ask one thing of a GPU; None where this GPU or its driver cannot tell. A GPU that is lost raises NVML's own error."""
    try:
        return question()
    except pynvml.NVMLError as error:
        if type(error).__name__ in _CANNOT_TELL:
            return None
        raise


@contextmanager
def open_nvml() -> Iterator[Any | None]:
    """Open NVML; None on a machine without an NVIDIA driver or without a GPU.

    Raise TelemetryError where a driver is there and does not answer, now or in the body: a GPU that cannot be watched proves
    nothing.
    """
    with ExitStack() as stack, _explain():
        yield pynvml if _start(stack) else None


def _start(stack: ExitStack) -> bool:
    """Start NVML until `stack` ends. Whether there is a GPU."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if type(error).__name__ in _NO_DRIVER:
            return False
        raise
    stack.callback(_stop)
    return int(pynvml.nvmlDeviceGetCount()) > 0


def _stop() -> None:
    # The measurement is over: a failure here changes nothing of it.
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


@contextmanager
def _explain() -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise TelemetryError(f"NVML failed: {error}; look into the kernel's log (dmesg), then measure again") from None


def read_visible(env: Mapping[str, str]) -> tuple[str, ...]:
    """The devices, by index or UUID, that CUDA_VISIBLE_DEVICES leaves; none where it hides nothing."""
    return tuple(name.strip() for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip())


def find_first(nvml: Any) -> Any:
    """The device that CUDA would call 0: an index, a UUID, or the first."""
    chosen = next(iter(read_visible(os.environ)), "0")
    if chosen.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(chosen)
    index = int(chosen) if chosen.isdecimal() else 0
    return nvml.nvmlDeviceGetHandleByIndex(min(index, nvml.nvmlDeviceGetCount() - 1))


_READERS: dict[str, Callable[[Any, Any], float]] = {
    "sm_clock_mhz": lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
    "power_w": lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    "temperature_c": lambda nvml, device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
    "memory_used_bytes": lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).used,
}


class GpuMonitor:
    """An open NVML and the devices that are watched, by `names` as they were asked for.

    `unsupported` names what these devices cannot tell at all.
    """

    def __init__(self, nvml: Any, devices: Sequence[str], stack: ExitStack) -> None:
        """Ask each device once for everything, to learn what it cannot tell; `stack` holds NVML open."""
        self._nvml = nvml
        self._stack = stack
        self.names = tuple(devices)
        self._devices = tuple(find_device(nvml, device) for device in devices)
        readers = {**_READERS, "reasons": _read_reasons, PROCESSES: _read_pids}
        self.unsupported = frozenset(name for name, read in readers.items() if not self._can(read))

    @classmethod
    def open(cls, devices: Sequence[str]) -> Self | None:
        """Open NVML for `devices` (indices or UUIDs); None on a machine without an NVIDIA driver or GPU.

        Raise TelemetryError where there is a driver and it does not answer.
        """
        with ExitStack() as stack, _explain():
            return cls(pynvml, devices, stack.pop_all()) if _start(stack) else None

    @property
    def count(self) -> int:
        """How many devices are watched."""
        return len(self._devices)

    def read(self) -> tuple[DeviceSample, ...]:
        """Ask every device for everything that it can tell. Raise TelemetryError if one fails to."""
        with _explain():
            return tuple(self._read_one(device) for device in self._devices)

    def read_uuids(self) -> tuple[str, ...]:
        """Name every device permanently: an index means another GPU where fewer are visible."""
        return tuple(str(self._nvml.nvmlDeviceGetUUID(device)) for device in self._devices)

    def close(self) -> None:
        """Let NVML go."""
        self._stack.close()

    def _read_one(self, device: Any) -> DeviceSample:
        known = {name: read for name, read in _READERS.items() if name not in self.unsupported}
        return DeviceSample(
            values={name: float(read(self._nvml, device)) for name, read in known.items()},
            reasons=None if "reasons" in self.unsupported else _read_reasons(self._nvml, device),
            pids=None if PROCESSES in self.unsupported else _read_pids(self._nvml, device),
        )

    def _can(self, read: Callable[[Any, Any], object]) -> bool:
        return all(ask(partial(read, self._nvml, device)) is not None for device in self._devices)


def list_devices(args: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Name the devices that a server started with `args` and `env` will use, as CUDA_VISIBLE_DEVICES would.

    One GPU for each tensor, pipeline and data parallel rank, from `--base-gpu-id` on; with DP attention the data ranks share
    the tensor ranks' GPUs.
    """
    layout = read_layout(args)
    end = layout.first_gpu + layout.gpus
    names = read_visible({**os.environ, **env}) or tuple(str(index) for index in range(end))
    return names[layout.first_gpu : end]


def count_devices(env: Mapping[str, str]) -> int | None:
    """How many GPUs a server with the variables `env` may use; None where no NVIDIA driver can be asked."""
    if visible := read_visible({**os.environ, **env}):
        return len(visible)
    try:
        with open_nvml() as nvml:
            return None if nvml is None else int(nvml.nvmlDeviceGetCount())
    except TelemetryError:
        # The session itself says later what is wrong with the driver.
        return None


def lacks_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether there is certainly no GPU: NVML knows of none, and no driver, whoever made it, left a device file."""
    try:
        with open_nvml() as nvml:
            if nvml is not None:
                return False
    except TelemetryError:
        # The session itself says later what is wrong with the driver.
        return False
    return not any(any(devices.glob(pattern)) for pattern in DEVICE_FILES)


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


def find_device(nvml: Any, device: str) -> Any:
    """The device that an index or a UUID names."""
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
