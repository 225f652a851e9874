"""Is a machine fit to measure? Readings in, findings out; each finding has a severity that is the exit code of `doctor`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from perfgate.machine.accelerators import find_label, split_set
from perfgate.storage.rounding import format_count, format_percent

MAX_IDLE_MEMORY_SHARE = 0.01
MAX_IDLE_CELSIUS = 85
# NVML's bits: hardware slow-down, thermal (software, hardware), power brake. The board's power cap shapes healthy clocks.
SLOWDOWNS = {0x08: "hardware slow-down", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
# Errors of the hardware, as NVIDIA's XID catalogue sorts them; others, such as 13, 31 and 43, are a program's own fault.
FATAL_XIDS = {
    48: "double-bit ECC error",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
}
# A record of /dev/kmsg (priority,sequence,time,flags;text) or a line of dmesg. The text begins where the driver begins it: what
# a program can make the kernel say, such as its own name, stands further back. Priority 0 to 7: the kernel itself said it.
_RECORD = r"^(?:[0-7],\d+,\d+,[^;\n]*;|\[ *\d+\.\d+\] )NVRM: "
_XID = re.compile(_RECORD + r"Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)\b(?P<rest>.*)", re.MULTILINE)
# What is behind the load of the driver is of another life of the GPUs.
_LOADED = re.compile(_RECORD + r"loading NVIDIA", re.MULTILINE)
# XID 154 tells what a GPU needs from now on: after a reset, nothing.
RECOVERY_XID = 154
_RECOVERED = re.compile(r"to 0x0 \(None\)")


class Severity(IntEnum):
    """Exit codes of `perfgate runner doctor`: the worst finding's."""

    OK = 0
    BUSY = 10
    DEGRADED = 20
    BROKEN = 30
    WRONG = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What NVML says of one GPU at rest. None where this GPU or driver cannot tell.

    `reasons` are the bits that say why clocks are held back; `links_down` counts NVLinks that are there and inactive.
    """

    index: int
    uuid: str
    name: str
    memory_gib: float
    memory_used_share: float
    celsius: int | None
    pids: tuple[int, ...] | None
    reasons: int | None
    ecc_uncorrected: int | None
    is_remap_pending: bool | None
    is_remap_failed: bool | None
    links_down: int | None
    pcie_width: int | None
    pcie_max_width: int | None
    is_persistent: bool | None
    is_mig: bool | None
    bus: str | None = None
    """Where it sits, as NVML says it: "00000000:B1:00.0"."""

    @property
    def label(self) -> str:
        """The runner label of this GPU."""
        return find_label(self.name, self.memory_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark about one GPU (or the host), and what to do."""

    severity: Severity
    where: str
    message: str


def judge_health(
    readings: Sequence[Reading], *, expected: str | None = None, kernel_log: str = "", is_whole: bool = True
) -> tuple[Finding, ...]:
    """Find everything that is wrong, worst first.

    `is_whole`: `readings` are all GPUs of the machine, so that the kernel's log is read for one that is no more among them too;
    else an XID of a GPU that is not among them is a neighbour's.
    """
    findings = [finding for reading in readings for finding in _judge(reading)]
    findings += _judge_log(kernel_log, readings, is_whole=is_whole)
    if expected is not None:
        findings += _judge_label(readings, expected)
    return tuple(sorted(findings, key=lambda finding: (-finding.severity, finding.where, finding.message)))


def find_severity(findings: Iterable[Finding]) -> Severity:
    """The worst of the findings."""
    return max((finding.severity for finding in findings), default=Severity.OK)


def _judge(reading: Reading) -> Iterator[Finding]:
    where = f"GPU {reading.index}"
    used = format_percent(reading.memory_used_share, 0)
    checks = (
        (
            Severity.BUSY,
            bool(reading.pids),
            f"processes {', '.join(map(str, reading.pids or ()))} compute on it; wait for them or end them",
        ),
        (
            Severity.BUSY,
            not reading.pids and reading.memory_used_share > MAX_IDLE_MEMORY_SHARE,
            f"{used} of its memory is in use though no process shows; look outside of this container",
        ),
        (Severity.DEGRADED, (reading.celsius or 0) > MAX_IDLE_CELSIUS, f"{reading.celsius} degrees at rest; check the cooling"),
        (Severity.DEGRADED, bool(reading.links_down), f"{reading.links_down} NVLinks are down; reseat or report the board"),
        (
            Severity.DEGRADED,
            (reading.pcie_width or 0) < (reading.pcie_max_width or 0),
            f"PCIe runs {reading.pcie_width} lanes of {reading.pcie_max_width}; reseat the board",
        ),
        (Severity.DEGRADED, reading.is_persistent is False, "persistence mode is off; `nvidia-smi -pm 1` keeps clocks steady"),
        (
            Severity.BROKEN,
            bool(reading.ecc_uncorrected),
            f"{reading.ecc_uncorrected} uncorrected ECC errors; drain and reset it",
        ),
        (Severity.BROKEN, bool(reading.is_remap_pending), "a row remapping is pending; reset the GPU"),
        (Severity.BROKEN, bool(reading.is_remap_failed), "a row remapping failed; replace the board"),
        (Severity.WRONG, bool(reading.is_mig), "MIG is on: a slice is another machine; switch it off"),
    )
    yield from (Finding(severity=severity, where=where, message=text) for severity, is_so, text in checks if is_so)
    for cause in sorted({cause for bit, cause in SLOWDOWNS.items() if (reading.reasons or 0) & bit}):
        yield Finding(severity=Severity.DEGRADED, where=where, message=f"clocks are held back: {cause}")


def _judge_log(kernel_log: str, readings: Sequence[Reading], *, is_whole: bool) -> Iterator[Finding]:
    """Hardware errors since the driver was loaded and since the GPU was reset.

    A GPU whose place NVML does not tell could be any: then every error counts.
    """
    here = {_place(reading.bus) for reading in readings if reading.bus is not None}
    is_known = not is_whole and all(reading.bus is not None for reading in readings)
    for bus, number in sorted(_list_xids(kernel_log)):
        if number in FATAL_XIDS and not (is_known and _place(bus) not in here):
            message = f"XID {number} in the kernel's log: {FATAL_XIDS[number]}; drain it and reset or replace it"
            yield Finding(severity=Severity.BROKEN, where=f"GPU at {bus}", message=message)


def _list_xids(kernel_log: str) -> set[tuple[str, int]]:
    """Each GPU's place with the numbers that the driver told of it and no reset has answered."""
    loads = [match.end() for match in _LOADED.finditer(kernel_log)]
    seen: set[tuple[str, int]] = set()
    for match in _XID.finditer(kernel_log, loads[-1] if loads else 0):
        if int(match["number"]) == RECOVERY_XID and _RECOVERED.search(match["rest"]):
            seen = {(bus, number) for bus, number in seen if _place(bus) != _place(match["bus"])}
        seen.add((match["bus"], int(match["number"])))
    return seen


def _place(bus: str) -> tuple[int, ...]:
    """Domain, bus and device, of NVML's "00000000:B1:00.0" as of the kernel's "0000:b1:00"."""
    return tuple(int(part or "0", 16) for part in bus.partition(".")[0].split(":"))


def _judge_label(readings: Sequence[Reading], expected: str) -> Iterator[Finding]:
    if not readings:
        yield Finding(severity=Severity.WRONG, where="host", message=f"no GPU where {expected} was asked for")
    kind, count = split_set(expected)
    if readings and count > 1 and count != len(readings):
        there = format_count(len(readings), "GPU")
        message = f"{there} where {expected} was asked for; a slot names its GPUs in /etc/perfgate/runner.toml"
        yield Finding(severity=Severity.WRONG, where="host", message=message)
    for reading in readings:
        if reading.label != kind:
            message = f"{reading.name} with {reading.memory_gib:.1f} GiB is {reading.label}, not {kind}"
            yield Finding(severity=Severity.WRONG, where=f"GPU {reading.index}", message=message)
