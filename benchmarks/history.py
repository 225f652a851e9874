"""Bring back recorded sessions that left the working tree for room: they lie in this repository's history.

    python -m benchmarks.history COMMIT FOLDER

prints the folder's place under build/history/, where the files lie as that commit has them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from perfgate.errors import InputError, PerfgateError

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "history"
HOMES = {
    "benchmarks/engines/ledger/sessions": "35d52c5f2cc06ad2184756648b31d831353f1c18",
    "benchmarks/h100/serving": "348622a4925af506d29721ac737ce731adf27b67",
    "benchmarks/h200/serving/results": "348622a4925af506d29721ac737ce731adf27b67",
    "benchmarks/h200/serving/routed": "17a65035619e6d7be032eca1dd1927dea3147666",
}
"""Folders of sessions, some of which have no room in the tree, with the commit that holds all of each."""


def restore(commit: str, folder: str) -> Path:
    """Unpack a folder of a commit, once, and return its place. Raise InputError where this clone's history lacks it."""
    place = PLACE / commit / folder
    if place.is_dir():
        return place
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "--", folder]
    found = subprocess.run(git, capture_output=True, check=False)
    if found.returncode:
        raise InputError(f"{folder}: lies in the history at {commit}, which this clone lacks; `git fetch --unshallow`")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(PLACE / commit, filter="data")
    return place


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
