"""What git tracks of the working tree."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def list_tracked(*patterns):
    """Names of the tracked files that match one of `patterns`, all where there is none; nothing where this is no clone."""
    done = subprocess.run(
        ["git", "ls-files", "-z", *patterns],  # noqa: S607 - whichever git made the working tree
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else []
