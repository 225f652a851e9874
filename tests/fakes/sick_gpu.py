"""Build the fake libnvidia-ml and run Python code against it, in a process of its own: a library stays loaded for good."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAKES = Path(__file__).parent
ROOT = FAKES.parents[1]

# What every script begins with: `set_gpu` changes the GPU, `wait_samples` lets the telemetry look at it.
PRELUDE = """
import json, os, time
from pathlib import Path
STATE = Path(os.environ["FAKE_NVML"])
COUNT = Path(str(STATE) + ".samples")
def set_gpu(**values):
    part = STATE.with_name("state.part")
    part.write_text("".join(f"{key} {value}\\n" for key, value in values.items()))
    part.replace(STATE)
def count_samples():
    return COUNT.stat().st_size if COUNT.exists() else 0
def wait_samples(number=2):
    wanted, deadline = count_samples() + number, time.monotonic() + 60
    while count_samples() < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
set_gpu()
"""


def build_library(folder: Path) -> Path:
    """Compile the library into `folder`, or skip the test that wants it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the fake libnvidia-ml.so.1")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, FAKES / "nvml.c"], check=True)
    return library


def run_with_gpu(library: Path, folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` after the prelude with the library in place of NVIDIA's; `folder` holds the GPU's state."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML": str(folder / "state"),
        "PYTHONPATH": f"{ROOT}:{FAKES / 'bench'}",
        **env,
    }
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
