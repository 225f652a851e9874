"""A settings file that is written by hand: TOML, read whole or refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from perfgate.errors import InputError
from perfgate.scenario.toml import name_excess
from perfgate.storage.schema import adapt, describe_first
from perfgate.storage.stream import read_text

T = TypeVar("T")


def read_settings(path: Path, kind: type[T], remedy: str) -> T:
    """Read the file at `path`; `remedy` says how to get one. Raise InputError naming the field that is wrong."""
    try:
        return adapt(kind).validate_python(tomllib.loads(read_text(path)))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {remedy}") from None
    except ValidationError as error:
        raise InputError(f"{path}: {describe_first(error, whole='file')}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not readable TOML ({error})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable TOML ({name_excess(error)})") from None
