"""What of a machine lies next to each GPU, shared out between the slots: whole cores of the GPUs' own memory nodes, and memory.

Neighbours that share a core or a memory controller disturb each other's measurement, and one that takes all memory ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SLOTS_MEMORY_SHARE = 0.9
"""The rest is the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A slot's processors and memory nodes as systemd writes them ("0-3 8-11"), and bytes. None: the kernel tells nothing."""

    cpus: str | None
    nodes: str | None
    memory_bytes: int


def read_shares(buses: Mapping[str, Sequence[str]], sysfs: Path = Path("/sys")) -> dict[str, Share]:
    """Share this machine out between slots, given where the GPUs of each sit ("00000000:B1:00.0"): to each GPU as much."""
    devices = {bus: _find_device(sysfs, bus) for own in buses.values() for bus in own}
    near = {bus: tuple(parse_list(_read(device / "local_cpulist"))) for bus, device in devices.items()}
    nodes = {bus: int(_read(device / "numa_node") or -1) for bus, device in devices.items()}
    memory_bytes = int(psutil.virtual_memory().total * SLOTS_MEMORY_SHARE / max(1, len(devices)))
    shares = {}
    for name, own in buses.items():
        processors = [one for bus in own for one in _share_processors(bus, near, sysfs)]
        known = {nodes[bus] for bus in own} - {-1}
        shares[name] = Share(
            cpus=format_list(processors) or None, nodes=format_list(known) or None, memory_bytes=memory_bytes * len(own)
        )
    return shares


def _share_processors(bus: str, near: Mapping[str, Sequence[int]], sysfs: Path) -> list[int]:
    """Those of one GPU: the GPUs that lie next to the same processors get as many cores each, in the order of their buses."""
    mates = [mate for mate, theirs in near.items() if theirs == near[bus]]
    cores = group_cores(near[bus], sysfs)
    size = len(cores) // len(mates)
    begin = mates.index(bus) * size
    return [one for core in cores[begin : begin + size] for one in core]


def _find_device(sysfs: Path, bus: str) -> Path:
    """The folder of a PCI device: the kernel writes four digits of the domain where NVML writes eight."""
    domain, _, rest = bus.lower().partition(":")
    return sysfs / "bus" / "pci" / "devices" / f"{domain[-4:]}:{rest}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def group_cores(processors: Sequence[int], sysfs: Path = Path("/sys")) -> list[tuple[int, ...]]:
    """Processors that are threads of one core, together; each by itself where the kernel tells nothing."""
    cores = {}
    for one in processors:
        told = _read(sysfs / "devices" / "system" / "cpu" / f"cpu{one}" / "topology" / "thread_siblings_list")
        siblings = tuple(sorted(set(parse_list(told)) & set(processors))) or (one,)
        cores[siblings[0]] = siblings
    return [cores[first] for first in sorted(cores)]


def parse_list(text: str) -> list[int]:
    """Read the kernel's form of a list, such as "0-3,8"."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def format_list(numbers: Iterable[int]) -> str:
    """Write a list as systemd reads it, such as "0-3 8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
