"""Pictures by matplotlib: the same numbers give the same file, and a file is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfgate.errors import InputError

FORMATS = (".png", ".svg")


def save_picture(path: Path, draw: Callable[[Any], None]) -> None:
    """Let `draw` fill the axes, and save them. Raise InputError for another suffix, no matplotlib or an unwritable place."""
    require_format(path)
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InputError("--picture needs matplotlib: pip install 'sglang-perfgate[plots]'") from None
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    draw(figure.add_subplot())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # A fixed salt and no date, or equal numbers would give different bytes.
        with rc_context({"svg.hashsalt": "perfgate"}):
            figure.savefig(
                temporary, format=path.suffix[1:].lower(), metadata={"Date": None} if path.suffix == ".svg" else None
            )
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"--picture {path}: cannot be written ({error.strerror}); choose another place") from None
    finally:
        temporary.unlink(missing_ok=True)


def require_format(path: Path) -> None:
    """Raise InputError for a suffix that is no picture's."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--picture {path}: the name must end in {' or '.join(FORMATS)}")
