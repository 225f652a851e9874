"""The facts of hardware and software that are kept with a measurement, how two machines differ in them, and a machine's key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil

from perfgate.core import FactDifference, Fingerprint

HARDWARE_FACTS = ("hardware", "gpu", "gpu_memory_gib", "clock_policy")
"""Facts of the machine. A stored baseline needs all of them to be equal; the two arms of a comparison too."""

HOST_FACTS = ("cpu", "cores")
"""Facts of the GPU's host. Both arms have the same host; stored noise of another one weighs less. Without a GPU, the host is
what serves, and its facts are hardware.
"""

SOFTWARE_FACTS = ("driver", "cuda", "torch", "triton", "sglang", "vllm", "transformers", "numpy", "os", "kernel", "python")
"""Facts of what runs on it. The two arms may differ in them only where the pull request changes them."""

ABSENT = "absent"


def hardware_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact of what serves that differs, with both values: of the GPU, or of a machine that has none."""
    facts = HARDWARE_FACTS if _have_gpu(mine, theirs) else (*HARDWARE_FACTS, *HOST_FACTS)
    return _only(mine, facts).differences(_only(theirs, facts))


def host_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact of the host of a GPU that differs, with both values; nothing where the host is what serves."""
    facts = HOST_FACTS if _have_gpu(mine, theirs) else ()
    return _only(mine, facts).differences(_only(theirs, facts))


def _have_gpu(mine: Fingerprint, theirs: Fingerprint) -> bool:
    return all(one.facts.get("gpu", ABSENT) != ABSENT for one in (mine, theirs))


def software_differences(mine: Fingerprint, theirs: Fingerprint) -> tuple[FactDifference, ...]:
    """Return each fact of the software that differs, with both values."""
    return _only(mine, SOFTWARE_FACTS).differences(_only(theirs, SOFTWARE_FACTS))


def _only(fingerprint: Fingerprint, keys: tuple[str, ...]) -> Fingerprint:
    return Fingerprint(facts={key: value for key, value in fingerprint.facts.items() if key in keys})


def slug(text: str) -> str:
    """Turn a device's name into lower-case words joined by hyphens, without marks and filler."""
    plain = re.sub(r"\((r|tm|c)\)|\bcpu\b|\bprocessor\b|@", " ", text.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.") or "unknown"


def cpu_key(cpu: Mapping[str, str]) -> str:
    """Name the folder of this CPU's baselines, for example cpu-intel-xeon-2.50ghz-2c."""
    return f"cpu-{slug(cpu['cpu'])}-{cpu['cores']}c"


def gpu_key(gpu: Mapping[str, str]) -> str:
    """Name the folder of this GPU's baselines: its name, its memory in whole GiB rounded up."""
    name, memory = slug(gpu["gpu"]), f"{ceil(float(gpu['gpu_memory_gib']))}gb"
    return name if memory in name.split("-") else f"{name}-{memory}"
