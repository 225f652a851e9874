"""Lay releases of SGLang side by side, each with a Python of its own: HOME/releases/VERSION/bin/python.

    python -m benchmarks.h200.campaign.releases HOME sglang-0.5.16.tar.xz sglang-0.5.17.tar.xz ...

The first archive is the bundle that lies unpacked in HOME/site; the others are what `bundle.py --over` made of it. A release's
folder of packages goes before PYTHONPATH, which names the bundle's, and holds all of them: a package is never of two folders.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.h200.campaign.bundle import GONE

LAID = "whole"


def read_version(archive: Path) -> str:
    """The release of an archive, by its name: sglang-VERSION.tar.xz."""
    return archive.name.removeprefix("sglang-").removesuffix(".tar.xz")


def lay_over(bundle: Path, archive: Path, target: Path) -> None:
    """Make a release's folder of packages: the bundle's files as hard links, but for those that differ or are gone.

    Compiled modules stay behind: they are told from stale ones by time and size alone, and no packed file has a time.
    """
    shutil.copytree(bundle, target, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__"))
    with tarfile.open(archive) as tar:
        listed = tar.extractfile(GONE)
        gone = [] if listed is None else listed.read().decode().splitlines()
        members = [member for member in tar.getmembers() if member.name != GONE]
        # A linked file is taken away before another one is written: its content is the bundle's as well.
        for name in (*gone, *(member.name for member in members)):
            (target / name).unlink(missing_ok=True)
        tar.extractall(target, members, filter="data")
    for name in gone:
        # An empty folder could be imported.
        with suppress(OSError):
            os.removedirs((target / name).parent)


def make_python(folder: Path, packages: Path) -> None:
    """Make an environment over the running Python's whose `packages` go first, in its processes and in those they start."""
    venv.create(folder, system_site_packages=True, symlinks=True)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    lines = [f"import sys; sys.path.insert(0, {str(packages)!r})", *site.getsitepackages()]
    (own / "release.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def lay(home: Path, archives: Sequence[Path]) -> None:
    """Lay the bundle's release and those over it, but for what is laid already; what an earlier call left half is made anew."""
    bundle, *others = archives
    for archive in (bundle, *others):
        folder = home / "releases" / read_version(archive)
        if (folder / LAID).exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        packages = home / "site"
        if archive != bundle:
            packages = folder / "site"
            lay_over(home / "site", archive, packages)
        make_python(folder, packages)
        (folder / LAID).touch()


if __name__ == "__main__":
    lay(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
