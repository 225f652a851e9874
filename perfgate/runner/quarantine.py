"""Closed slots: a job that was refused closes its slot for a while, so that the next refused one does not come at once.
So does what DCGM finds of its GPU.

The hook runs as the slot's user, so all it can leave is a note in the slot's own folder. Root makes a mark of it when the job
has ended, in a folder that no job can write: a job can close its own slot, for a while, and no other.
"""

from __future__ import annotations

import time
from pathlib import Path

import orjson

from perfgate.errors import RunnerError
from perfgate.runner.scrub import read_left
from perfgate.runner.settings import Runner
from perfgate.storage.journal import write_atomically

REFUSAL = "refused"
MAX_REASON_BYTES = 400


def leave_refusal(home: Path, reason: str) -> None:
    """Note in the slot's folder that its job was refused. Raise RunnerError where the note cannot be written."""
    try:
        (home / REFUSAL).write_text(reason, encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunnerError(f"{home / REFUSAL}: cannot be written ({error.strerror}); HOME is the slot's folder") from None


def take_refusal(home: Path) -> str | None:
    """Why the last job of a slot was refused; None when it was not. Its words are a job's, so they are cut and printable."""
    try:
        raw = read_left(home / REFUSAL, MAX_REASON_BYTES)
    except RunnerError as error:
        return str(error)
    if raw is None:
        return None
    text = "".join(letter if letter.isprintable() else " " for letter in raw.decode("utf-8", "replace"))
    return text.strip() or "no reason was noted"


def close_slot(runner: Runner, name: str, reason: str, clock: float | None = None, *, for_s: float | None = None) -> None:
    """Close a slot for a while, as root. Raise RunnerError where the mark cannot be written."""
    until = (time.time() if clock is None else clock) + (runner.quarantine_s if for_s is None else for_s)
    path = _mark(runner, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, orjson.dumps({"until": until, "reason": reason}))
    except OSError as error:
        raise RunnerError(f"{path}: cannot be written ({error.strerror}); the marks are root's") from None


def find_quarantine(runner: Runner, name: str, clock: float | None = None) -> str | None:
    """Why a slot is closed; None when it is open. A mark that cannot be read closes it."""
    path = _mark(runner, name)
    try:
        mark = orjson.loads(path.read_bytes())
        left_s = float(mark["until"]) - (time.time() if clock is None else clock)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path} cannot be read; look at it, then delete it"
    return f"{mark.get('reason')} (for {left_s:.0f} s more)" if left_s > 0 else None


def _mark(runner: Runner, name: str) -> Path:
    return runner.state / f"quarantine-{name}.json"
