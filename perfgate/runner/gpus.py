"""Read the health of GPUs through NVML, whose answers are documented; the text of nvidia-smi is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from perfgate.errors import InputError, RunnerError
from perfgate.machine.links import list_link_states
from perfgate.machine.nvml import ask, open_nvml, read_visible
from perfgate.machine.tools import Tool
from perfgate.runner.health import Finding, Reading, Severity
from perfgate.runner.setup.host import Board

_DCGM = Tool(timeout_s=600.0, failed=RunnerError)
_Answer = TypeVar("_Answer")


def read_gpus() -> tuple[Reading, ...]:
    """Read every GPU, or those that CUDA_VISIBLE_DEVICES names; none on a machine without a driver.

    Raise TelemetryError where there is a driver that does not answer: such a machine measures nothing.
    """
    return _ask_devices(_read)


def list_boards() -> tuple[Board, ...]:
    """List the same GPUs as boards, with the numbers of their device files. Raise as `read_gpus` does."""
    return _ask_devices(
        lambda nvml, _, device: Board(
            uuid=_text(nvml.nvmlDeviceGetUUID(device)),
            minor=int(nvml.nvmlDeviceGetMinorNumber(device)),
            bus=_text(nvml.nvmlDeviceGetPciInfo(device).busId),
        )
    )


def lock_clocks(uuid: str, mhz: int) -> None:
    """Hold a GPU at one clock, as root. Raise TelemetryError where its driver refuses.

    NVML does not tell what is locked, and a reload of the driver or `nvidia-smi -rgc` undoes it: so it is set, not compared.
    """
    with open_nvml() as nvml:
        if nvml is not None:
            nvml.nvmlDeviceSetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid), mhz, mhz)


def diagnose(gpus: Sequence[int] = ()) -> tuple[Finding, ...]:
    """Run DCGM's second level on some GPUs, else on all; some two minutes, in which nothing on the machine may measure."""
    chosen = ["-i", ",".join(map(str, gpus))] if gpus else []
    try:
        _DCGM.call(["dcgmi", "diag", "-r", "2", *chosen], name="DCGM's diagnosis")
    except InputError:
        message = "dcgmi is not installed, so nothing was looked at in depth; install datacenter-gpu-manager"
        return (Finding(severity=Severity.DEGRADED, where="host", message=message),)
    except RunnerError as error:
        return (Finding(severity=Severity.BROKEN, where="host", message=str(error)),)
    return ()


def read_toolchain() -> tuple[str, str]:
    """What compiled kernels depend on here: driver version and architecture, such as ("580.95.05", "sm90").

    Raise RunnerError without a GPU: nothing is compiled for none.
    """
    found = _ask_devices(lambda nvml, _, device: (_text(nvml.nvmlSystemGetDriverVersion()), _read_architecture(nvml, device)))
    if len(set(found)) != 1:
        raise RunnerError(f"{len(set(found))} kinds of GPU here; compile caches are kept for machines of one kind")
    return found[0]


def _read_architecture(nvml: Any, device: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    return f"sm{major}{minor}"


def _ask_devices(question: Callable[[Any, int, Any], _Answer]) -> tuple[_Answer, ...]:
    with open_nvml() as nvml:
        return () if nvml is None else tuple(question(nvml, index, device) for index, device in _list_devices(nvml))


def _list_devices(nvml: Any) -> list[tuple[int, Any]]:
    devices = [
        (index, device) for index in range(nvml.nvmlDeviceGetCount()) if (device := _open_device(nvml, index)) is not None
    ]
    chosen = read_visible(os.environ)
    if not chosen:
        return devices
    found = [
        (index, device) for index, device in devices if str(index) in chosen or _text(nvml.nvmlDeviceGetUUID(device)) in chosen
    ]
    if len(found) != len(chosen):
        raise RunnerError(f"CUDA_VISIBLE_DEVICES={','.join(chosen)} names GPUs that are not there; {len(devices)} are")
    return found


def _open_device(nvml: Any, index: int) -> Any | None:
    """The GPU of this number; None for a neighbour's, which NVML counts and a slot's device rules hide."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError_NoPermission:
        return None


def _read(nvml: Any, index: int, device: Any) -> Reading:
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    rows = ask(lambda: nvml.nvmlDeviceGetRemappedRows(device))
    return Reading(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(device)),
        name=_text(nvml.nvmlDeviceGetName(device)),
        memory_gib=memory.total / 2**30,
        memory_used_share=memory.used / memory.total,
        celsius=ask(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
        pids=ask(lambda: tuple(sorted(one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(device)))),
        reasons=ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device)),
        ecc_uncorrected=ask(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        ),
        is_remap_pending=None if rows is None else bool(rows[2]),
        is_remap_failed=None if rows is None else bool(rows[3]),
        links_down=_count_links_down(nvml, device),
        pcie_width=ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(device)),
        pcie_max_width=ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(device)),
        is_persistent=ask(lambda: nvml.nvmlDeviceGetPersistenceMode(device) == nvml.NVML_FEATURE_ENABLED),
        bus=ask(lambda: _text(nvml.nvmlDeviceGetPciInfo(device).busId)),
        is_mig=ask(lambda: nvml.nvmlDeviceGetMigMode(device)[0] == nvml.NVML_DEVICE_MIG_ENABLE),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _count_links_down(nvml: Any, device: Any) -> int | None:
    """Count inactive NVLinks. A board on which none is active has none, or stands alone; that is no fault."""
    known = list_link_states(nvml, device)
    return known.count(False) if any(known) else None


def read_kernel_log(path: Path = Path("/dev/kmsg")) -> str | None:
    """Read what the kernel has said since it started; None where this user may not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    lines = []
    try:
        while (line := _read_record(descriptor)) is None or line:
            lines.append((line or b"").decode("utf-8", "replace"))
    except BlockingIOError:
        pass  # the end of a log that goes on
    finally:
        os.close(descriptor)
    return "\n".join(lines)


def _read_record(descriptor: int) -> bytes | None:
    """One record of the kernel's log; None where the next ones were overwritten while it was read: what follows is there."""
    try:
        return os.read(descriptor, 8192)
    except BrokenPipeError:
        return None
