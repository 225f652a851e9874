"""The search on disk: what was fixed in `search.json`, everything that happened in `journal.jsonl`, one line each.

A line is on disk before the next step begins, and the next step is computed from the lines alone: killed at any moment, a
search loses the measurement in flight and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from perfgate.bisection.search import CommitReading, Measured, Search, SearchRules
from perfgate.errors import EvidenceError
from perfgate.results.folders import require_equal
from perfgate.storage.journal import append_line, cut_torn_line, read_bytes, read_lines, write_atomically
from perfgate.storage.schema import adapt, check_value, parse_any

DAMAGED = "the folder was damaged, search again"

SEARCH_FILE = "search.json"
JOURNAL_FILE = "journal.jsonl"

# The margin of a metric on the log scale: the field of `CommitReading`, and the key that journal lines have always had for it.
MARGIN = "margin_log"
JOURNAL_MARGIN = "margin"


class Record:
    """The journal of one search, read and appended to."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in `folder`; a last line that was being written when the search died is taken away."""
        self.folder = folder
        self._path = folder / JOURNAL_FILE
        cut_torn_line(self._path)
        self._lines = list(read_lines(self._path))

    @property
    def measurements(self) -> int:
        """How many measurements came to an end, valid or not: the next one's number."""
        return sum(line.get("event") in {"measured", "void"} for line in self._lines)

    def add(self, event: str, place: int, sha: str, minutes: float, **facts: Any) -> None:
        """Append one line."""
        line = {"event": event, "place": place, "commit": sha, "minutes": round(minutes, 6), **facts}
        append_line(self._path, line)
        self._lines.append(line)

    def replay(self, places: int, rules: SearchRules) -> Search:
        """Rebuild the search from its lines. Raise EvidenceError naming the line that is wrong."""
        lines = [_check(line, self._path, number, places) for number, line in enumerate(self._lines, start=1)]
        voids: dict[int, tuple[str, ...]] = {}
        for line in _pick(lines, "void"):
            voids[line["place"]] = (*voids.get(line["place"], ()), str(line.get("reason", "")))
        builds = _pick(lines, "built")
        return Search(
            places=places,
            rules=rules,
            measured=tuple(self._read_measured(line) for line in _pick(lines, "measured")),
            skipped={line["place"]: str(line.get("reason", "")) for line in _pick(lines, "skipped")},
            voids=voids,
            built=frozenset(line["place"] for line in builds),
            build_minutes=tuple(line["minutes"] for line in builds),
            minutes=sum(line["minutes"] for line in lines),
        )

    def list_folders(self, place: int) -> tuple[str, ...]:
        """Where the raw data of one commit's measurements lies."""
        return tuple(str(line.get("folder", "")) for line in _pick(self._lines, "measured") if line["place"] == place)

    def _read_measured(self, line: Mapping[str, Any]) -> Measured:
        values = _rename_margin(line.get("metrics"), JOURNAL_MARGIN, MARGIN)
        metrics = check_value(values, dict[str, CommitReading], self._path, DAMAGED)
        return Measured(place=line["place"], minutes=line["minutes"], metrics=metrics)


def begin(folder: Path, facts: Mapping[str, Any], *, resume: bool) -> Record:
    """Begin a search in `folder`, or go on with the one there. Raise EvidenceError when that is another, or unasked for."""
    path = folder / SEARCH_FILE
    if not path.exists():
        write_atomically(path, orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    elif not resume:
        raise EvidenceError(f"{folder}: already holds a search; continue with --resume, or give a new folder")
    else:
        require_equal(folder, _load(path), orjson.loads(orjson.dumps(facts)))
    return Record(folder)


def _load(path: Path) -> dict[str, Any]:
    found = parse_any(read_bytes(path), path, DAMAGED)
    return found if isinstance(found, dict) else {}


def _check(line: Mapping[str, Any], path: Path, number: int, places: int) -> Mapping[str, Any]:
    place, minutes = line.get("place"), line.get("minutes")
    if not isinstance(place, int) or not 0 <= place <= places or not isinstance(minutes, int | float):
        raise EvidenceError(f"{path}:{number}: place or minutes are no numbers; {DAMAGED}")
    return line


def _pick(lines: Iterable[Mapping[str, Any]], event: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if line.get("event") == event]


def dump_metrics(metrics: Mapping[str, CommitReading]) -> dict[str, Any]:
    """A measurement's metrics as a journal line holds them."""
    plain: dict[str, Any] = adapt(dict[str, CommitReading]).dump_python(dict(metrics), mode="json")
    renamed: dict[str, Any] = _rename_margin(plain, MARGIN, JOURNAL_MARGIN)
    return renamed


def _rename_margin(metrics: Any, before: str, after: str) -> Any:
    """Rename one field of each metric; what is no mapping stays for the validation to refuse."""
    if not isinstance(metrics, dict):
        return metrics
    return {
        name: {after if key == before else key: value for key, value in fields.items()} if isinstance(fields, dict) else fields
        for name, fields in metrics.items()
    }
