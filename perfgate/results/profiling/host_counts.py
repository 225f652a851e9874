"""What a decode step costs the host in both arms, beside a session's profiles: instructions, counted without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field

from perfgate.storage.journal import read_json, write_atomically
from perfgate.storage.schema import STRICT

HOST_FILE = "host.json"
HostPart = Literal["scheduler", "detokenizer", "tokenizer_manager"]
Instructions = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False, strict=True)]

SAME_RATIO = 0.01
"""The share by which two counts of the same code may differ: two runs of a build were up to 0.7 % apart in a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCount:
    """Instructions that one part of the engine's host takes for one decode step, in both arms.

    A hand-off from a job that ran foreign code carries it as it is, so nothing is converted or passed over on reading.
    """

    part: HostPart
    base: Instructions
    candidate: Instructions
    __pydantic_config__ = STRICT

    @property
    def change(self) -> float:
        """Candidate over base, less one."""
        return self.candidate / self.base - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFile:
    counts: Annotated[tuple[HostCount, ...], Field(max_length=3)]
    __pydantic_config__ = STRICT


def store_host(folder: Path, counts: Iterable[HostCount]) -> None:
    """Keep the counts of a session's arms in its folder; those of an earlier run are replaced."""
    lines = [asdict(one) for one in counts]
    write_atomically(folder / HOST_FILE, orjson.dumps({"counts": lines}, option=orjson.OPT_APPEND_NEWLINE))


def load_host(folder: Path) -> tuple[HostCount, ...]:
    """Read them; none where none were counted. Raise EvidenceError for a file that holds anything else."""
    path = folder / HOST_FILE
    return read_json(path, _HostFile, "count again with `perfgate scheduler --into`").counts if path.is_file() else ()
