"""Is a machine fit to measure? Readings in, findings out; each finding has a severity that is the exit code of `doctor`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from perfgate.machine.accelerators import find_label
from perfgate.storage.rounding import format_percent

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
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)\b")


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
    readings: Sequence[Reading], *, expected: str | None = None, kernel_log: str = "", own: Iterable[int] = ()
) -> tuple[Finding, ...]:
    """Find everything that is wrong, worst first. `own` are processes of this job, which may be on the GPU."""
    findings = [finding for reading in readings for finding in _judge(reading, frozenset(own))]
    findings += _judge_log(kernel_log)
    if expected is not None:
        findings += _judge_label(readings, expected)
    return tuple(sorted(findings, key=lambda finding: (-finding.severity, finding.where, finding.message)))


def find_severity(findings: Iterable[Finding]) -> Severity:
    """The worst of the findings."""
    return max((finding.severity for finding in findings), default=Severity.OK)


def _judge(reading: Reading, own: frozenset[int]) -> Iterator[Finding]:
    where = f"GPU {reading.index}"
    foreign = [pid for pid in reading.pids or () if pid not in own]
    used = format_percent(reading.memory_used_share, 0)
    checks = (
        (Severity.BUSY, bool(foreign), f"processes {', '.join(map(str, foreign))} compute on it; wait for them or end them"),
        (
            Severity.BUSY,
            not foreign and not own and reading.memory_used_share > MAX_IDLE_MEMORY_SHARE,
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


def _judge_log(kernel_log: str) -> Iterator[Finding]:
    seen = {(match["bus"], int(match["number"])) for match in _XID.finditer(kernel_log)}
    for bus, number in sorted(seen):
        if number in FATAL_XIDS:
            message = f"XID {number} in the kernel's log: {FATAL_XIDS[number]}; drain it and reset or replace it"
            yield Finding(severity=Severity.BROKEN, where=f"GPU at {bus}", message=message)


def _judge_label(readings: Sequence[Reading], expected: str) -> Iterator[Finding]:
    if not readings:
        yield Finding(severity=Severity.WRONG, where="host", message=f"no GPU where {expected} was asked for")
    for reading in readings:
        if reading.label != expected:
            message = f"{reading.name} with {reading.memory_gib:.1f} GiB is {reading.label}, not {expected}"
            yield Finding(severity=Severity.WRONG, where=f"GPU {reading.index}", message=message)
