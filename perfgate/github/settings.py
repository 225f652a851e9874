"""`.github/perfgate.toml`: what a repository measures on which machines, read from the base branch, never from a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.errors import InputError
from perfgate.github.handoff.handoff import Label
from perfgate.scenario.settings import read_settings

DEFAULT_PATH = Path(".github/perfgate.toml")
_STRICT = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MachineSettings:
    """What is measured on one kind of machine, by a pull request and, `smoke`, in a merge queue."""

    scenarios: Annotated[tuple[Label, ...], Field(min_length=1, max_length=8)]
    smoke: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MatrixJob:
    """One scenario on one kind of machine: an entry of a workflow's matrix."""

    hardware: Label
    scenario: Label


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Settings:
    """The machines by their label.

    `uncalibrated` says what a REGRESSION does on a machine that stores too few A/A blocks: it fails, or is only reported.
    """

    hardware: Annotated[Mapping[Label, MachineSettings], Field(min_length=1, max_length=8)]
    uncalibrated: Literal["fail", "report"] = "fail"

    def list_jobs(self, *, is_smoke: bool = False) -> tuple[MatrixJob, ...]:
        """Every pair of a machine and a scenario, as a workflow's matrix wants them."""
        return tuple(
            MatrixJob(hardware=name, scenario=scenario)
            for name, machine in sorted(self.hardware.items())
            for scenario in (machine.smoke if is_smoke else machine.scenarios)
        )


@cache
def _adapter() -> TypeAdapter[Settings]:
    return TypeAdapter(Settings)


def format_jobs(jobs: Sequence[MatrixJob]) -> str:
    """Write jobs as the JSON that `strategy.matrix.include` takes."""
    return orjson.dumps(jobs).decode()


def parse_jobs(text: str) -> tuple[MatrixJob, ...]:
    """Read the jobs again. Raise InputError for anything that `format_jobs` would not have written."""
    try:
        return TypeAdapter(tuple[MatrixJob, ...]).validate_json(text)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"--matrix: {message}; give what `perfgate github plan` wrote") from None


def load_settings(path: Path) -> Settings:
    """Read the file. Raise InputError naming the field that is wrong."""
    return read_settings(path, _adapter(), "docs/github.md")
