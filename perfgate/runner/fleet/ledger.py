"""Who ran what for how many GPU-minutes: one line a job, written by root when the job has ended, readable by all.

The hook notes in the slot's folder which run the job belongs to, and a job can change that note. So root asks GitHub which job
ran on the runner that the slot had registered; what GitHub does not confirm is written as unverified, on no account but
the machine's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as record_class

from perfgate.errors import RunnerError
from perfgate.runner.admission import RunnerJob
from perfgate.runner.scrub import read_left_value
from perfgate.runner.settings import Repository
from perfgate.storage.schema import FOREIGN, Identifier, adapt, find

NOTE = "job.json"
LEDGER = "ledger.jsonl"
MAX_NOTE_BYTES = 4096
UNKNOWN = "unknown"
Name = Annotated[str, Field(pattern=r"^[\w.\[\]-]{1,100}$")]
Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@record_class(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class Note:
    """What the hook was told of a job that it let in. `user` wrote the pull request, or started the run."""

    repository: Repository
    run_id: Identifier
    run_attempt: Identifier
    event: Name
    user: Name


@record_class(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class LedgerEntry:
    """One job that ended: `began_s` in seconds of the epoch, and whether GitHub confirmed it.

    `gpu_minutes` are the clock's, times the GPUs of the slot.
    """

    slot: Name
    repository: str
    run_id: int
    event: Name
    user: Name
    began_s: Real
    gpu_minutes: Real
    is_verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When root registered the slot's runner, when the hook noted the job, and now; in seconds of the epoch. And its GPUs."""

    registered_s: float
    noted_s: float
    ended_s: float
    gpus: int = 1


def build_note(job: RunnerJob, environment: Mapping[str, str]) -> Note:
    """Note whose job this is. Raise RunnerError where the runner does not say which run it belongs to."""
    user = _find_user(job.payload)
    try:
        return Note(
            repository=job.repository,
            run_id=int(environment.get("GITHUB_RUN_ID", "")),
            run_attempt=int(environment.get("GITHUB_RUN_ATTEMPT", "1")),
            event=job.event,
            user=user,
        )
    except ValueError:
        raise RunnerError("GITHUB_RUN_ID, GITHUB_RUN_ATTEMPT or the event: say no run, so no time is counted") from None


def _find_user(told: Mapping[str, Any]) -> str:
    """Who wrote the pull request, whose command started the run, or who started it.

    A command dispatches in the bot's name and says whose it was. What a person dispatches is that person's, whatever is said.
    """
    asked = find(told, "inputs.asked_by") if find(told, "sender.type") == "Bot" else None
    people = (find(told, "pull_request.user.login"), asked, find(told, "sender.login"))
    return next((found for found in people if isinstance(found, str) and found), UNKNOWN)


def leave_note(home: Path, note: Note) -> None:
    """Leave the note for root. Raise RunnerError where it cannot be left: an uncounted job is not begun."""
    try:
        (home / NOTE).write_bytes(orjson.dumps(note))
    except OSError as error:
        raise RunnerError(f"{home / NOTE}: cannot be written ({error.strerror}); HOME is the slot's folder") from None


def read_note(home: Path) -> Note | None:
    """Read the note of a slot's last job; None when none was let in. Raise RunnerError for what is no note."""
    return read_left_value(home / NOTE, MAX_NOTE_BYTES, Note, "note of a job")


def settle(slot: str, note: Note | None, jobs: Iterable[Mapping[str, Any]] | None, registered: str, span: Span) -> LedgerEntry:
    """Turn a note into an entry. `jobs` are those of the noted run as GitHub tells them; None where it could not be asked.

    A note that GitHub contradicts, or that is none, counts from the registration on: a false one never costs less.
    """
    mine = [job for job in jobs or () if job.get("runner_name") == registered]
    began_s = span.noted_s if note is not None and jobs is None else span.registered_s
    if note is None or len(mine) != 1:
        return _enter(slot, note if jobs is None else None, (began_s, span.ended_s), span.gpus, is_verified=False)
    began, ended = (_read_time(mine[0].get(name)) for name in ("started_at", "completed_at"))
    return _enter(slot, note, (began or began_s, ended or span.ended_s), span.gpus, is_verified=True)


def _enter(slot: str, note: Note | None, times_s: tuple[float, float], gpus: int, *, is_verified: bool) -> LedgerEntry:
    began_s, ended_s = times_s
    return LedgerEntry(
        slot=slot,
        repository=UNKNOWN if note is None else note.repository,
        run_id=0 if note is None else note.run_id,
        event=UNKNOWN if note is None else note.event,
        user=UNKNOWN if note is None else note.user,
        began_s=began_s,
        gpu_minutes=max(0.0, round(gpus * (ended_s - began_s) / 60, 2)),
        is_verified=is_verified,
    )


def _read_time(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def append(path: Path, entry: LedgerEntry) -> None:
    """Add a line whole or not at all, as root. Raise RunnerError where it cannot be added.

    On half a line, as a full disk takes it, every later job of the machine would be refused.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            os.fchmod(descriptor, 0o644)
            _write_whole(file, orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise RunnerError(f"{path}: cannot be written ({error.strerror}); the ledger is root's") from None


def _write_whole(file: FileIO, line: bytes) -> None:
    """Take back what found room of a line that did not. Without a lock, for every job may read this file, and so lock it."""
    if (written := file.write(line)) != len(line):
        os.ftruncate(file.fileno(), file.tell() - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_entries(path: Path, since_s: float = 0.0) -> tuple[LedgerEntry, ...]:
    """Read the jobs that began after `since_s`. Raise RunnerError for a line that is none: what it hides cannot be known."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise RunnerError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        entries = [adapt(LedgerEntry).validate_json(line) for line in lines]
    except ValidationError:
        raise RunnerError(f"{path}: holds a line that is no entry; look at it, then delete that line") from None
    return tuple(entry for entry in entries if entry.began_s >= since_s)
