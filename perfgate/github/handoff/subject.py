"""Which change was measured, where, and by which run; and the words of it that every job holds to the same rule."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from perfgate.runner.settings import Repository
from perfgate.scenario.schema import Name
from perfgate.storage.schema import FOREIGN, Count

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Label = Name
"""A machine or a scenario: one rule on either side of the border, or a scenario could be measured and never handed over."""
FactName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
SmallCount = Annotated[int, Field(ge=0, lt=100_000)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class HandoffSubject:
    """Which change was measured, where, and by which run. `pull_request` is 0 for a run that belongs to none."""

    repository: Repository
    pull_request: Count
    head_sha: Sha
    run_id: Count
    run_attempt: SmallCount
    hardware: Label
