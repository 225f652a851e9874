"""Write .github/requirements.txt anew: run with Python 3.11 on x86-64 Linux, read the difference, commit it."""

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


def main() -> None:
    """Let pip resolve the dependencies without installing them, and keep the digest of each file that it would take."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    options = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *wanted], capture_output=True, text=True, check=True
    )
    chosen = [(one["metadata"], one["download_info"]["archive_info"]["hashes"]) for one in json.loads(done.stdout)["install"]]
    lines = sorted(f"{meta['name'].lower()}=={meta['version']} --hash=sha256:{hashes['sha256']}" for meta, hashes in chosen)
    (ROOT / ".github" / "requirements.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
