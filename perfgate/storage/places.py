"""Places that a user chose for what a command makes: made and written, or refused in one line that names the option."""

from __future__ import annotations

from pathlib import Path

from perfgate.errors import InputError
from perfgate.storage.journal import write_atomically


def open_folder(folder: Path, option: str = "") -> Path:
    """Make a folder that is asked for with `option`, where it is not there yet. Raise InputError where that cannot be.

    Called before anything is measured, too: whoever misspells a path is told at once.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refuse(folder, option, error) from None
    return folder


def write_file(content: bytes, file: Path, option: str = "") -> None:
    """Write a file whole or not at all, or standard output for `-`; a device or a pipe takes the bytes and stays what it is.

    Raise InputError, with the `option` that named it or its folder, where it cannot be written.
    """
    try:
        if file.exists() and not file.is_file():
            with file.open("wb") as device:
                device.write(content)
        else:
            write_atomically(file, content)
    except BrokenPipeError:
        # The reader has seen enough; click ends the program.
        raise
    except OSError as error:
        raise _refuse(file, option, error) from None


def _refuse(place: Path, option: str, error: OSError) -> InputError:
    return InputError(f"{option} {place}: cannot be written ({error.strerror}); choose another place".lstrip())
