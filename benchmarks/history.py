"""Bring back recorded sessions that left the working tree for room: they lie in this repository's history.

    python -m benchmarks.history COMMIT FOLDER

prints the folder's place under build/history/, where the files lie as that commit has them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from perfgate.errors import InputError, PerfgateError

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "history"
HOMES = {
    "benchmarks/engines/ledger/sessions": "c33a97e6598b0f1198fdc8a7835cecbc52458ad3",
    "benchmarks/h100/serving": "566cb4432bf62f9fdf7f07e308a12ff1bd79e812",
    "benchmarks/h200/serving/results": "348622a4925af506d29721ac737ce731adf27b67",
    "benchmarks/h200/serving/routed": "30e5ffa7fb4a7b4f8a4850f394c3dda73eb0c192",
    "benchmarks/vllm/results": "9e4d240672dc6d2847992b404088bd9c678becf0",
}
"""Folders of sessions, some of which have no room in the tree, with the commit that holds all of each."""


def restore(commit: str, folder: str) -> Path:
    """Unpack what is missing of a commit's folder, and return its place. Raise InputError where this clone's history lacks it.

    A part of it may be there, or another process may unpack it at this moment: each file appears whole.
    """
    target = PLACE / commit
    if all((target / name).exists() for name in _run_git(commit, folder, "ls-tree", "-r", "--name-only").decode().splitlines()):
        return target / folder
    packed = _run_git(commit, folder, "archive", "--format=tar")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as part, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(part, filter="data")
        for file in [path for path in Path(part).rglob("*") if not path.is_dir()]:
            place = target / file.relative_to(part)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
    return target / folder


def _run_git(commit: str, folder: str, *words: str) -> bytes:
    git = ["git", "-C", str(ROOT), *words, commit, "--", folder]
    found = subprocess.run(git, capture_output=True, check=False)
    if found.returncode or not found.stdout:
        raise InputError(f"{folder}: lies in the history at {commit}, which this clone lacks; `git fetch --unshallow`")
    return found.stdout


def restore_all(folder: Path) -> Path:
    """One of those folders with all its sessions. Raise InputError where this clone's history lacks them."""
    name = folder.resolve().relative_to(ROOT).as_posix()
    if name not in HOMES:
        raise InputError(f"{name}: no session of it has left the tree; those folders are {', '.join(HOMES)}")
    return restore(HOMES[name], name)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(restore(*sys.argv[1:]))
    except PerfgateError as error:
        print(f"history: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
