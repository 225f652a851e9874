"""Put the CPU serving engine into a Python environment: SGLang without the CUDA packages that its own pins would pull."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from perfgate.errors import EngineError
from perfgate.machine.tools import Tool

# Step 2 of 2. Step 1 is the extra `cpu-engine`, whose pins these packages run with although they ask for others.
PACKAGES = ("sglang==0.5.15.post1", "triton==3.6.0", "torchvision==0.15.2")
_PIP = Tool(timeout_s=3600.0, missing=EngineError, failed=EngineError)
REQUIRED = ("torch", "transformers", "xgrammar")


def list_missing() -> list[str]:
    """Name the packages of the engine that are absent from this Python or have another version."""
    return [pin for pin in PACKAGES if read_version(pin.partition("==")[0]) != pin.partition("==")[2]]


def read_version(package: str) -> str:
    """Return the installed version of a distribution, or `absent`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def install_engine() -> list[str]:
    """Install what is missing and return it. Raise EngineError when step 1 was left out or pip fails."""
    absent = [package for package in REQUIRED if read_version(package) == "absent"]
    if absent:
        raise EngineError(
            f"{', '.join(absent)} missing: first `pip install '.[cpu-engine]'` in perfgate's checkout, then this command again"
        )
    missing = list_missing()
    if missing:
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *missing]
        _PIP.call(argv, name=f"pip install {' '.join(missing)}")
    return missing
