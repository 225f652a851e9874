"""Result folders below a folder, the newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from perfgate.core import Outcome
from perfgate.errors import InputError, PerfgateError
from perfgate.results.records import SESSION_FILE, SessionRecord, read_record
from perfgate.results.resumption import read_progressed
from perfgate.storage.rounding import VERDICT_FILE

RESULTS = Path("perfgate-results")
"""Where sessions go unless they are told otherwise, below the working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFolder:
    """A result folder as a list shows it; `outcome` is None where it was not judged, `is_ended` False where it was cut off."""

    path: Path
    record: SessionRecord
    outcome: Outcome | None
    is_ended: bool


def list_results(parent: Path) -> list[ResultFolder]:
    """Read the result folders below `parent`, the newest first. Folders that cannot be read are left out."""
    if not parent.is_dir():
        raise InputError(f"{parent}: no such folder; sessions go to {RESULTS} below the folder they are started in")
    return sorted(_find(parent), key=lambda one: (one.record.begun_utc, str(one.path)), reverse=True)


def find_latest(parent: Path = RESULTS) -> Path:
    """The newest result folder below `parent`. Raise InputError where there is none."""
    found = list_results(parent)
    if not found:
        raise InputError(f"{parent}: holds no result folder; give the one that you mean")
    return found[0].path


def find_cut_off(parent: Path, scenario: str) -> Path:
    """The newest session of `scenario` below `parent` that was cut off. Raise InputError where there is none to go on with."""
    found = [one for one in list_results(parent) if one.record.scenario == scenario and one.record.purpose == "ab"]
    cut = [one for one in found if not one.is_ended]
    if not cut:
        raise InputError(f"--resume: no session of {scenario} below {parent} was cut off; name its folder with --out")
    return cut[0].path


def _find(parent: Path) -> Iterator[ResultFolder]:
    for file in sorted(parent.glob(f"*/{SESSION_FILE}")):
        try:
            record, is_ended = read_record(file.parent), read_progressed(file.parent).is_ended
        except PerfgateError:
            continue
        yield ResultFolder(path=file.parent, record=record, outcome=_read_outcome(file.parent), is_ended=is_ended)


def _read_outcome(folder: Path) -> Outcome | None:
    """What the folder's verdict says; None without one that can be read."""
    try:
        return Outcome(orjson.loads((folder / VERDICT_FILE).read_bytes())["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
