"""Folders of models that perfgate writes: whole or not at all, and never over another model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perfgate.errors import InputError
from perfgate.storage.journal import write_atomically

# What only the config of a model that perfgate made holds.
MARK = '"perfgate_weights": "'
CONFIG = "config.json"

# Weights take a while to draw: they are asked for only where they have to be written.
Content = str | bytes | Callable[[], bytes]


def write_folder(folder: Path, files: Mapping[str, Content]) -> Path:
    """Write `files` by name into `folder`, the config last: a folder that has it is complete. Return the folder.

    One that already holds the same config and every file is left as it is, one that perfgate wrote is renewed. Raise InputError
    for any other, and for one that cannot be written.
    """
    try:
        if is_written(folder, files):
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=lambda name: name == CONFIG):
            _write(folder / name, files[name])
    except OSError as error:
        raise InputError(f"{folder}: cannot write the model there ({error.strerror}); give a writable folder") from error
    return folder


def is_written(folder: Path, files: Mapping[str, Content]) -> bool:
    """Whether `folder` holds this model already. Raise InputError where it holds one that perfgate did not make."""
    config = folder / CONFIG
    if not config.exists():
        return False
    found = config.read_text(encoding="utf-8", errors="replace")
    if found == files[CONFIG]:
        return all((folder / name).exists() for name in files)
    if MARK in found:
        return False
    raise InputError(f"{folder}: holds another model; give an empty folder")


def _write(path: Path, content: Content) -> None:
    if callable(content):
        content = content()
    write_atomically(path, content.encode() if isinstance(content, str) else content)
