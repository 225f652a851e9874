"""The device that kernels are timed on: what it is, what runs on it, and the state it is in."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from perfgate_moe import __version__

STATE_FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_event_reasons.active",
)
PACKAGES = ("torch", "triton", "sglang")


def describe_device() -> dict[str, str]:
    """Device and versions, which must agree between runs that are judged together."""
    has_gpu = torch.cuda.is_available()
    device = str(torch.cuda.get_device_name()) if has_gpu else "cpu"
    driver = {"driver": read_state().get("driver_version", "unknown")} if has_gpu else {}
    return {"device": device, "perfgate": __version__, **{name: find_version(name) for name in PACKAGES}, **driver}


def find_version(distribution: str) -> str:
    """The installed version, or `absent`."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def read_state() -> dict[str, str]:
    """Clocks, power, temperature and throttle reasons as nvidia-smi tells them; empty without a GPU."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(STATE_FIELDS)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(STATE_FIELDS, done.stdout.strip().split(", "), strict=False)) if done.returncode == 0 else {}
