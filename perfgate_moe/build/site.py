"""Let SGLang find the plug-ins of a checkout that is only on PYTHONPATH; needs neither torch nor Triton."""

from __future__ import annotations

import tomllib
from pathlib import Path

from perfgate_moe import __version__
from perfgate_moe.errors import MoeInputError

ROOT = Path(__file__).parents[2]
"""The folder that holds this package: the root of a checkout of perfgate, or where it is installed."""


def write_site(folder: Path, pyproject: Path | None = None) -> Path:
    """Write `folder`/sglang_perfgate-VERSION.dist-info with the entry points of the checkout's pyproject.toml; returns it.

    Where the package is also installed, Python takes the one of the two that comes first on its path, never both, because they
    have one name. MoeInputError where there is no checkout, for then the package is installed and needs no such folder.
    """
    source = pyproject or ROOT / "pyproject.toml"
    if not source.is_file():
        raise MoeInputError(
            f"no {source}: perfgate runs from an installed package here, whose entry points are visible as it is"
        )
    project = tomllib.loads(source.read_text(encoding="utf-8"))["project"]
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project.get("entry-points", {}).items()
    ]
    made = folder / f"{project['name'].replace('-', '_')}-{__version__}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {__version__}\n"
    try:
        made.mkdir(parents=True, exist_ok=True)
        (made / "METADATA").write_text(metadata, encoding="utf-8")
        (made / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    except OSError as error:
        raise MoeInputError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from None
    return made
