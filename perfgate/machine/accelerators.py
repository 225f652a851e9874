"""The GPUs that perfgate has runner labels for: a label is derived from what the driver says, never typed in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfgate.core import ABSENT
from perfgate.machine.fingerprint import slug

CPU = "cpu"
PRIORITIES = ("perfgate-queue", "perfgate-pull", "perfgate-night")
"""Labels of the kinds of jobs, the most urgent first: the merge queue, pull requests and commands, the night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One product. `name` is a pattern that NVML's product name matches whole; memory is in GiB as NVML counts it."""

    label: str
    name: str
    min_gib: float
    max_gib: float


# The variants of one chip differ in power, clocks and memory, so each has a label of its own.
ACCELERATORS = (
    Accelerator(label="h100", name=r"NVIDIA H100(?: 80GB HBM3| SXM5)?", min_gib=78, max_gib=81),
    Accelerator(label="h100-pcie", name=r"NVIDIA H100 PCIe", min_gib=78, max_gib=81),
    Accelerator(label="h100-nvl", name=r"NVIDIA H100 NVL", min_gib=92, max_gib=95),
    Accelerator(label="h20", name=r"NVIDIA H20", min_gib=94, max_gib=97),
    Accelerator(label="h20-3e", name=r"NVIDIA H20-3e", min_gib=138, max_gib=142),
    Accelerator(label="h200", name=r"NVIDIA H200", min_gib=138, max_gib=142),
    Accelerator(label="h200-nvl", name=r"NVIDIA H200 NVL", min_gib=138, max_gib=142),
)


def find_label(name: str, memory_gib: float) -> str:
    """Return the runner label of a GPU; one that the table does not list gets its own name as a label.

    A listed name with another amount of memory is another product (or a slice of one), so its label says the amount.
    """
    found = next((row for row in ACCELERATORS if re.fullmatch(row.name, name)), None)
    if found is None:
        return slug(name)
    return found.label if found.min_gib <= memory_gib <= found.max_gib else f"{found.label}-{memory_gib:.0f}gib"


def name_set(label: str, gpus: int) -> str:
    """Return the label of so many GPUs of one kind in one slot: that of the GPU, and "h20-x2" for two H20."""
    return label if gpus == 1 else f"{label}-x{gpus}"


def split_set(label: str) -> tuple[str, int]:
    """Return the label of each GPU of a set, and how many it holds: the other way of `name_set`."""
    found = re.fullmatch(r"(.+)-x([2-9]|[1-9]\d)", label)
    return (label, 1) if found is None else (found[1], int(found[2]))


def find_label_of_facts(facts: Mapping[str, str]) -> str:
    """Return the label of the machine that a fingerprint describes; "cpu" for one without a GPU.

    An arm over several GPUs has the fact `gpus`, and ran in a slot of as many.
    """
    name = facts.get("gpu", ABSENT)
    if name == ABSENT:
        return CPU
    memory = facts.get("gpu_memory_gib", "")
    gpus = facts.get("gpus", "1")
    label = find_label(name, float(memory) if re.fullmatch(r"\d{1,5}(\.\d{1,3})?", memory) else 0.0)
    return name_set(label, int(gpus) if re.fullmatch(r"\d{1,2}", gpus) else 0)
