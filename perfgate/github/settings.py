"""`.github/perfgate.toml`: what a repository measures on which machines, read from the base branch, never from a change."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.errors import InputError
from perfgate.github.handoff import Label

DEFAULT_PATH = Path(".github/perfgate.toml")
_STRICT = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Machine:
    """What is measured on one kind of machine, by a pull request and, `smoke`, in a merge queue."""

    scenarios: Annotated[tuple[Label, ...], Field(min_length=1, max_length=8)]
    smoke: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Settings:
    """`label` is what a pull request must carry to be measured."""

    hardware: Annotated[Mapping[Label, Machine], Field(min_length=1, max_length=8)]
    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/-]{0,49}$")] = "perfgate"

    def list_jobs(self, *, is_smoke: bool = False) -> tuple[dict[str, str], ...]:
        """Every pair of a machine and a scenario, as a workflow's matrix wants them."""
        return tuple(
            {"hardware": name, "scenario": scenario}
            for name, machine in sorted(self.hardware.items())
            for scenario in (machine.smoke if is_smoke else machine.scenarios)
        )


@cache
def _adapter() -> TypeAdapter[Settings]:
    return TypeAdapter(Settings)


def load_settings(path: Path) -> Settings:
    """Read the file. Raise InputError naming the field that is wrong."""
    try:
        return _adapter().validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; docs/github.md shows one") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not readable TOML ({error})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}") from None
