"""Result folders below a folder, the newest first, and where a session or a matrix that was cut off can be resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import orjson

from perfgate.core import Outcome
from perfgate.errors import EvidenceError, InputError, PerfgateError
from perfgate.results.raw.pack import PACK_FILE
from perfgate.results.records import (
    EVENTS_FILE,
    INDEX_FILE,
    SCENARIO_FILE,
    SESSION_FILE,
    FolderRecord,
    IndexLine,
    SessionRecord,
    find_superseded,
    read_entries,
    read_record,
)
from perfgate.scenario.matrix import Matrix
from perfgate.scenario.schema import Scenario
from perfgate.storage.journal import WINDOW_DIR, read_lines
from perfgate.storage.rounding import VERDICT_FILE
from perfgate.storage.schema import adapt, dump
from perfgate.storage.stream import STREAM

RESULTS = Path("perfgate-results")
"""Where sessions go by default, below the working directory."""

DEMOS = Path("perfgate-demo")
"""Where `perfgate demo` copies its sessions to, below the working directory."""

Work = TypeVar("Work", Scenario, Matrix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFolder:
    """A result folder as a list shows it; `outcome` is None where it was not judged, `is_ended` False where it was cut off."""

    path: Path
    record: SessionRecord
    outcome: Outcome | None
    is_ended: bool


def list_results(parent: Path) -> tuple[list[ResultFolder], list[Path]]:
    """Read the result folders below `parent`, the newest first; behind them are those that cannot be read.

    RESULTS need not exist yet. Raise InputError where another folder does not.
    """
    if not parent.is_dir() and parent != RESULTS:
        raise InputError(f"{parent}: no such folder; sessions go to {RESULTS} below the folder they are started in")
    found: list[ResultFolder] = []
    unread: list[Path] = []
    for folder in sorted(file.parent for file in parent.glob(f"*/{SESSION_FILE}")):
        try:
            record, is_ended = read_record(folder), read_progressed(folder).is_ended
        except PerfgateError:
            unread.append(folder)
        else:
            found.append(ResultFolder(path=folder, record=record, outcome=_read_outcome(folder), is_ended=is_ended))
    return sorted(found, key=lambda one: (one.record.begun_utc, str(one.path)), reverse=True), unread


def find_latest(parent: Path = RESULTS) -> Path:
    """The newest result folder below `parent`. Raise InputError where there is none."""
    found, _ = list_results(parent)
    if not found:
        raise InputError(f"{explain_none(parent)}; give the result folder that you mean")
    return found[0].path


def explain_none(parent: Path) -> str:
    """Say that `parent` holds no results yet, and what makes or lists some."""
    if DEMOS.is_dir():
        return f"no results in {parent} yet; those of the demo lie in {DEMOS}: `perfgate list {DEMOS}`"
    return f"no results in {parent} yet; `perfgate gate` measures, `perfgate demo` shows what a result looks like"


def find_cut_off(parent: Path, scenario: str) -> Path:
    """The newest session of `scenario` below `parent` that was cut off. Raise InputError where there is none to go on with."""
    found = [one for one in list_results(parent)[0] if one.record.scenario == scenario and one.record.purpose == "ab"]
    cut = [one for one in found if not one.is_ended]
    if not cut:
        raise InputError(f"--resume: no session of {scenario} below {parent} was cut off; name its folder with --out")
    return cut[0].path


def _read_outcome(folder: Path) -> Outcome | None:
    """What the folder's verdict says; None without one that can be read."""
    try:
        return Outcome(orjson.loads((folder / VERDICT_FILE).read_bytes())["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """How far a session or a matrix got; by default not at all.

    `blocks` are whole ones, `starts` servers that were started, `elapsed_s` the last moment that the folder knows of, on the
    session's own clock. `cut` are the files of windows of the block, or the cell, that was in flight: half a block before a
    break and half after it would be no block, since its servers are gone and what it pairs away may have changed. `unindexed`
    are raw files whose line was never written.
    """

    blocks: int = 0
    starts: int = 0
    elapsed_s: float = 0.0
    is_ended: bool = False
    cut: tuple[str, ...] = ()
    unindexed: tuple[str, ...] = ()


def read_progressed(folder: Path) -> Progressed:
    """Read how far the session in `folder` got."""
    events, entries = list(read_lines(folder / EVENTS_FILE)), read_entries(folder)
    blocks = max((read_whole(event, "block") for event in events if event.get("event") == "block_ended"), default=0)
    found = measure_progress(folder, events, entries, [entry.file for entry in entries if entry.block > blocks])
    return replace(found, blocks=blocks, is_ended=any(event.get("event") == "session_ended" for event in events))


def measure_progress(
    folder: Path, events: Sequence[Mapping[str, Any]], entries: Sequence[IndexLine], unfinished: Iterable[str]
) -> Progressed:
    """How far the work of a folder got by its events and its index; `unfinished` are files of what was never made whole."""
    gone = find_superseded(events)
    known = {entry.file for entry in entries}
    files = sorted(f"{WINDOW_DIR}/{path.name}" for path in (folder / WINDOW_DIR).glob("[0-9]*.jsonl.gz"))
    starts = [read_whole(event, "start") for event in events if event.get("event") == "server_started"]
    return Progressed(
        starts=max((*starts, *(entry.start for entry in entries)), default=0),
        elapsed_s=max((*(read_number(event, "at_s") for event in events), *(entry.ended_s for entry in entries)), default=0.0),
        cut=tuple(file for file in unfinished if file not in gone),
        unindexed=tuple(file for file in files if file not in known),
    )


def read_number(event: Mapping[str, Any], key: str) -> float:
    """A number of an event. Raise EvidenceError where it is none, or is negative."""
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise EvidenceError(f"{EVENTS_FILE}: {key}: {value!r} is no number; the folder was damaged, measure again")
    return float(value)


def read_whole(event: Mapping[str, Any], key: str) -> int:
    """A number of an event that counts something. Raise EvidenceError where it has a fraction, or is none."""
    value = read_number(event, key)
    if not value.is_integer():
        raise EvidenceError(f"{EVENTS_FILE}: {key}: {value!r} is no number; the folder was damaged, measure again")
    return int(value)


def require_apart(outputs: Mapping[str, Path], sources: Iterable[Path]) -> None:
    """Raise InputError for an output that is written over what is read, or over another output."""
    read = [source.resolve() for source in sources if source != STREAM]
    taken = {*read, *(folder / name for folder in read for name in (SESSION_FILE, SCENARIO_FILE, INDEX_FILE, EVENTS_FILE))}
    for option, path in outputs.items():
        place = path.resolve()
        if place in taken:
            raise InputError(f"{option} {path}: is read or written by the same command; choose another place")
        taken.add(place)


def require_cut_off(folder: Path) -> None:
    """Raise EvidenceError unless `folder` holds a session that was begun and has not ended."""
    read_record(folder)
    if read_progressed(folder).is_ended:
        raise EvidenceError(f"{folder}: its session has ended; `perfgate check` judges it, a new folder measures again")
    if (folder / PACK_FILE).exists():
        raise EvidenceError(f"{folder}: its raw files were packed, so nothing is added to it; measure into a new folder")


def require_same(folder: Path, records: tuple[FolderRecord, FolderRecord], works: tuple[Work, Work]) -> None:
    """Raise EvidenceError naming the first thing that is not as it was when the work in `folder` began.

    Of each pair the first is what was stored, the second what is asked for now.
    """
    # What the machine and the arms are comes first: it explains the rest.
    began, begins = map(dump, records)
    require_same_inherited(folder, began, begins)
    require_equal(folder, began, begins)
    require_equal(folder, *(adapt(type(work)).dump_python(work) for work in works))


def require_same_inherited(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise EvidenceError naming the first variable that servers inherit otherwise than when the work in `folder` began.

    Takes the variables out of both records; a folder from before they were kept cannot be asked.
    """
    was, is_now = before.pop("inherited", None), now.pop("inherited", None)
    for name, old, new in find_differences(was, is_now) if was is not None else ():
        raise EvidenceError(
            f"{folder}: cannot go on: the variable {name}, which servers inherit, was {_show(old)} and is {_show(new)}; "
            "set it as it was, or measure into a new folder"
        )


def require_equal(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise EvidenceError naming the first thing that `folder` says otherwise, but for what its writer filled in."""
    for name, was, is_now in find_differences(before, now):
        if name not in {"begun_utc", "text_sha256"}:
            raise EvidenceError(
                f"{folder}: cannot go on: {name} was {_show(was)} and is {_show(is_now)}; give the options that it began "
                "with, on the machine that it began on, or a new folder"
            )


def find_differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name and both values of each leaf in which two nested values differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted(before.keys() | now.keys(), key=str):
            yield from find_differences(before.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif before != now:
        yield name, before, now


def _show(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value)) or "nothing"
    return "absent" if value is None else str(value)
