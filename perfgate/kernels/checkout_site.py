"""Make a checkout's entry points visible to Python without installing it: a folder for PYTHONPATH."""

from __future__ import annotations

import tomllib
from pathlib import Path

import perfgate
from perfgate.errors import InputError


def write_site(folder: Path, pyproject: Path | None = None) -> Path:
    """Write `folder`/sglang_perfgate-VERSION.dist-info with the entry points of the checkout's pyproject.toml; returns it.

    Where the package is also installed, Python takes whichever of the two comes first on its path, never both, because they
    have one name. InputError where there is no checkout, for then the package is installed and needs no such folder.
    """
    source = pyproject or Path(perfgate.__file__).parents[1] / "pyproject.toml"
    if not source.is_file():
        raise InputError(f"no {source}: perfgate runs from an installed package here, whose entry points are visible as it is")
    project = tomllib.loads(source.read_text(encoding="utf-8"))["project"]
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project.get("entry-points", {}).items()
    ]
    made = folder / f"{project['name'].replace('-', '_')}-{perfgate.__version__}.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {perfgate.__version__}\n"
    (made / "METADATA").write_text(metadata, encoding="utf-8")
    (made / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    return made
