"""A window's samples of the GPUs, reduced to one number for each reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from perfgate.serving.nvml import HEAT, POWER_CAP, THROTTLES, DeviceSample

Reduce = Callable[[Sequence[float]], float]


def summarize_gpu(samples: Sequence[Sequence[DeviceSample]]) -> dict[str, float]:
    """Reduce samples, each of all devices in one order. What no device told is absent, never zero."""
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
    return {name: value for name, value in told.items() if value is not None}


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
