"""What the commands of `perfgate history` do. It loads pyarrow and DuckDB, which are an extra: imported when one is called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.history.database import LAST, HistoryQuestion
from perfgate.history.entries import enter_session
from perfgate.history.imports.data_js import is_data_js, read_data_js
from perfgate.history.imports.loose_runs import read_past_runs
from perfgate.history.imports.past import Past, PastRun, enter_past, read_moment
from perfgate.history.query import find_session, read_history
from perfgate.history.schema import SCHEMA
from perfgate.history.store import Store
from perfgate.history.trends import History, Provenance


def append_folders(folders: Sequence[Path], store: str, baselines: tuple[Path, ...], **told: str) -> list[dict[str, Any]]:
    """Add sessions with their verdicts to a store, and say of each what was found and whether it was added."""
    provenance = Provenance(**told)
    # All are read before the first is written: a broken folder leaves the store as it was.
    entries = [enter_session(folder, load_case(folder, baselines), provenance) for folder in folders]
    added = {entry.session for entry in Store(store).append(entries)}
    return [
        {
            "folder": folder,
            "session": entry.session,
            "windows": len(entry.windows),
            "outcome": entry.verdict["outcome"],
            "added": entry.session in added,
        }
        for folder, entry in zip(folders, entries, strict=True)
    ]


def ask(store: str, **asked: Any) -> History:
    """The trends of a store, as the options of `perfgate history show` choose them."""
    question = HistoryQuestion(
        scenarios=asked["scenarios"],
        hardware=asked["hardware"],
        metrics=asked["metrics"],
        since=read_moment(asked["since"]) if asked["since"] else None,
        last=LAST if asked["last"] is None else asked["last"],
    )
    return read_history(Store(store), question)


def overrule(store: str, session: str, *, person: str, ruling: str, reason: str) -> str:
    """Add a ruling to the ledger; the whole name of the session that begins with `session`."""
    opened = Store(store)
    found = find_session(opened, session)
    row = {"schema": SCHEMA, "session": found, "ruled": datetime.now(UTC), "person": person, "ruling": ruling, "reason": reason}
    opened.add_override(row)
    return found


def read_past(paths: Sequence[Path], **told: Any) -> tuple[list[PastRun], Sequence[str]]:
    """Read foreign numbers as the options of `perfgate history import` describe them, and name what was left out."""
    past = Past(
        hardware=told["hardware"],
        scenario=told["scenario"],
        at=read_moment(told["at"]) if told["at"] else None,
        pattern=_compile(told["pattern"]) if told["pattern"] else None,
        provenance=Provenance(commit=told["commit"], runner=told["runner"]),
        metrics=dict(_split(pair) for pair in told["renamed"]),
    )
    pages = [path for path in paths if is_data_js(path)]
    found = read_past_runs([path for path in paths if path not in pages], past)
    return [*found.runs, *(run for page in pages for run in read_data_js(page, past))], found.skipped


def store_past(store: str, runs: Iterable[PastRun]) -> int:
    """Add foreign runs to a store; how many were not there yet."""
    return len(Store(store).append([enter_past(run) for run in runs]))


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InputError(f"--pattern {pattern!r}: is no regular expression ({error})") from None


def _split(pair: str) -> tuple[str, str]:
    theirs, sign, ours = pair.rpartition("=")
    if not sign or not theirs or not ours:
        raise InputError(f"--metric {pair!r}: give THEIRS=OURS, for example 'P99 ITL=p99_itl_ms'")
    return theirs, ours
