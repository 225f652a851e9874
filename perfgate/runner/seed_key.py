"""What compiled kernels depend on, as the name of a seed: architecture, driver and every package of the engine."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys

from perfgate.errors import InputError, RunnerError
from perfgate.runner.gpus import read_toolchain
from perfgate.runner.settings import Runner

TIMEOUT_S = 120.0
_PACKAGES = """
from importlib.metadata import distributions
print(*sorted({f"{one.metadata['Name']}=={one.version}".lower() for one in distributions()}), sep="\\n")
"""


def find_key(runner: Runner) -> str:
    """The key of this machine's seeds, such as sm90-580.95.05-1f0e5c3a9b77. Another driver or engine has another one."""
    driver, architecture = read_toolchain()
    digest = hashlib.sha256(_list_packages(str(runner.engine or sys.executable))).hexdigest()[:12]
    return f"{architecture}-{re.sub(r'[^0-9A-Za-z.]', '-', driver)}-{digest}"


def _list_packages(python: str) -> bytes:
    try:
        return subprocess.run([python, "-c", _PACKAGES], capture_output=True, timeout=TIMEOUT_S, check=True).stdout
    except OSError as error:
        raise InputError(f"{python}: cannot be run ({error.strerror}); set engine in the runner's settings") from None
    except subprocess.SubprocessError:
        raise RunnerError(f"{python}: cannot list its packages; look at the engine's environment") from None
