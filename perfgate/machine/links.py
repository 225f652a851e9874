"""How the GPUs that one server is spread over reach each other: over NVLink or the host's bus, with or without peer access.

An all-reduce takes another time over another link, so these are facts of the machine, as the GPU's name is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

from perfgate.core import ABSENT
from perfgate.errors import TelemetryError
from perfgate.machine.nvml import ask, find_device, open_nvml

# NVML's ways of peer access; in place of the first, nvidia-ml-py has a tuple.
_READ, _NVLINK = 0, 2
# NVML's levels of the nearest part that two GPUs share, by the names that `nvidia-smi topo` has for them.
_PATHS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def read_links(devices: Sequence[str]) -> dict[str, str]:
    """The facts `gpus` and `link` of devices named by index or UUID; none of a single one.

    `link` is "NV18" for 18 NVLinks between each pair, or the way over the host's bus, as `nvidia-smi topo` names both; pairs
    that differ are joined by " + ". It is "absent" where no driver can be asked.
    """
    if len(devices) < 2:
        return {}
    try:
        with open_nvml() as nvml:
            link = ABSENT if nvml is None else _describe(nvml, [find_device(nvml, name) for name in devices])
    except TelemetryError:
        # The session itself says later what is wrong with the driver, or with the devices.
        link = ABSENT
    return {"gpus": str(len(devices)), "link": link}


def list_link_states(nvml: Any, device: Any) -> list[bool]:
    """Of each NVLink that a device has, whether it is active."""
    states = [ask(partial(nvml.nvmlDeviceGetNvLinkState, device, link)) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    return [state == nvml.NVML_FEATURE_ENABLED for state in states if state is not None]


def _describe(nvml: Any, devices: Sequence[Any]) -> str:
    return " + ".join(dict.fromkeys(_describe_pair(nvml, one, other) for one, other in combinations(devices, 2)))


def _describe_pair(nvml: Any, one: Any, other: Any) -> str:
    active = min(sum(list_link_states(nvml, device)) for device in (one, other))
    is_linked = active > 0 and _is_open(nvml, one, other, _NVLINK) is True
    path = f"NV{active}" if is_linked else _name_path(nvml, one, other)
    is_closed = _is_open(nvml, one, other, _READ) is False
    return f"{path} without peer access" if is_closed else path


def _is_open(nvml: Any, one: Any, other: Any, way: int) -> bool | None:
    """Whether a device reaches the other in this way; None where the driver cannot tell."""
    status = ask(lambda: nvml.nvmlDeviceGetP2PStatus(one, other, way))
    return None if status is None else bool(status == nvml.NVML_P2P_STATUS_OK)


def _name_path(nvml: Any, one: Any, other: Any) -> str:
    level = ask(lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    return "unknown" if level is None else _PATHS.get(int(level), "unknown")
