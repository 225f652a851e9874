"""`.github/perfgate.toml`: what a repository measures on which machines, read from the base branch, never from a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.errors import InputError
from perfgate.github.handoff.subject import Label
from perfgate.machine.accelerators import CPU, PRIORITIES, name_set, split_set
from perfgate.resolution.table import GPUS
from perfgate.scenario.catalog import list_scenarios, load_scenario
from perfgate.scenario.settings import read_settings
from perfgate.storage.rounding import format_count
from perfgate.storage.schema import STRICT, adapt

RunnerLabel = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Branch = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=60)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MachineSettings:
    """What is measured on one kind of machine, by a pull request and, `smoke`, in a merge queue.

    `runs_on` are the labels that find its runners; empty for self-hosted, linux, perfgate and the machine's own.
    """

    scenarios: Annotated[tuple[Label, ...], Field(min_length=1, max_length=8)]
    smoke: tuple[Label, ...] = ()
    runs_on: Annotated[tuple[RunnerLabel, ...], Field(max_length=8)] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MatrixJob:
    """One scenario on one kind of machine: an entry of a workflow's matrix. `runs_on` is empty for the usual labels.

    `kind` is one more label, of how urgent the job is; None where the settings do not ask for priorities.
    """

    hardware: Label
    scenario: Label
    runs_on: Annotated[tuple[RunnerLabel, ...], Field(max_length=9)] = ()
    kind: RunnerLabel | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """What the job asks of a runner; GitHub's word on the job must name all of them."""
        return self.runs_on or _name_labels(self.hardware)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Settings:
    """The machines by their label. `base_branches` are measured beside the default branch, each under statuses of its own.

    `priorities` has jobs ask for a label of how urgent they are, which machines that perfgate registers carry.
    `uncalibrated` says what a REGRESSION does on a machine that stores too few A/A blocks: it fails, or is only reported.
    `resolve` has both arms asked, on an ordinary machine, what they make the engine choose on the GPUs of `perfgate resolve`.
    `minutes` of each machine, by the clock, are what a pull request has for the parts that it touches; without it all scenarios
    are measured.
    """

    hardware: Annotated[Mapping[Label, MachineSettings], Field(min_length=1, max_length=8)]
    base_branches: Annotated[tuple[Branch, ...], Field(max_length=8)] = ()
    priorities: bool = False
    uncalibrated: Literal["fail", "report"] = "fail"
    resolve: bool = False
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @property
    def resolved(self) -> tuple[str, ...]:
        """The machines whose GPU both arms are asked about."""
        return tuple(name for name in sorted(self.hardware) if self.resolve and split_set(name)[0] in GPUS)

    def list_jobs(self, *, is_smoke: bool = False, is_night: bool = False) -> tuple[MatrixJob, ...]:
        """Every pair of a machine and a scenario, as a workflow's matrix wants them."""
        kind = PRIORITIES[0 if is_smoke else 2 if is_night else 1] if self.priorities else None
        return tuple(
            MatrixJob(hardware=name, scenario=scenario, runs_on=machine.runs_on or _name_labels(name), kind=kind)
            for name, machine in sorted(self.hardware.items())
            for scenario in (machine.smoke if is_smoke else machine.scenarios)
        )


@plain(frozen=True, slots=True, kw_only=True)
class JudgingOptions:
    """What hand-offs are judged by. `scenarios_in_pr` share one error budget, and the sections of `machines` one comment.

    `uncalibrated` is the repository's setting: "fail" or "report". `resolved` are the machines whose hand-offs must say what
    the change makes the engine choose.
    """

    scenarios: tuple[str, ...]
    baselines: tuple[Path, ...]
    scenarios_in_pr: int
    machines: int
    uncalibrated: str = "fail"
    resolved: tuple[str, ...] = ()


def _name_labels(hardware: str) -> tuple[str, ...]:
    return ("self-hosted", "linux", "perfgate", hardware)


def format_jobs(jobs: Sequence[MatrixJob]) -> str:
    """Write jobs as the JSON that `strategy.matrix.include` takes."""
    return orjson.dumps(
        [
            {"hardware": job.hardware, "scenario": job.scenario, "runs_on": [*job.labels, *filter(None, [job.kind])]}
            for job in jobs
        ]
    ).decode()


def parse_jobs(text: str) -> tuple[MatrixJob, ...]:
    """Read the jobs again. Raise InputError for anything that `format_jobs` would not have written."""
    try:
        return adapt(tuple[MatrixJob, ...]).validate_json(text)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"--matrix: {message}; give what `perfgate github plan` wrote") from None


def load_settings(path: Path) -> Settings:
    """Read the file. Raise InputError naming the field that is wrong."""
    settings = read_settings(path, Settings, "`perfgate github init` writes one (docs/how-to/github.md)")
    require_slots(settings, f"{path}: hardware.")
    return settings


def require_slots(settings: Settings, where: str) -> None:
    """Raise InputError for a machine without a GPU, and a shipped scenario of none or of another number than its slots hold.

    `where` is what stands before the machine's name in the message.
    """
    for hardware, machine in settings.hardware.items():
        kind, count = split_set(hardware)
        if kind == CPU:
            raise InputError(f"{where}{hardware}: is a machine without a GPU, which slots have; give the label of a GPU")
        shipped = (name for name in (*machine.scenarios, *machine.smoke) if name in list_scenarios())
        for scenario in shipped:
            gpus = load_scenario(scenario).server.gpus
            if gpus == 0:
                raise InputError(
                    f"{where}{hardware}: {scenario} measures without a GPU, which slots have; leave it out, and measure it "
                    f"with `perfgate gate {scenario}`"
                )
            if gpus != count:
                raise InputError(
                    f"{where}{hardware}: {scenario} takes {format_count(gpus, 'GPU')}; list it under "
                    f"[hardware.{name_set(kind, gpus)}], whose slots hold as many (docs/how-to/runners.md)"
                )
