"""The result folder: raw windows, written once and never changed, from which every verdict is recomputed.

Layout: `session.json` (what was fixed before the first window), `scenario.toml` (the text as it was read),
`windows/NNNN.jsonl.gz` (the load generator's own output, one file a window), `windows.jsonl` (one line per finished window: its
place, its file and the file's digest), `events.jsonl` (everything that happened), `logs/`. A window exists once its line does,
so a crash loses at most the window in flight.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.core import Arm, Fingerprint, Role, Session, Window
from perfgate.errors import EvidenceError
from perfgate.evidence.bench_serving import read_window
from perfgate.scenario import Scenario, parse_scenario

SCHEMA = 1
SESSION_FILE = "session.json"
SCENARIO_FILE = "scenario.toml"
INDEX_FILE = "windows.jsonl"
EVENTS_FILE = "events.jsonl"
WINDOW_DIR = "windows"
LOG_DIR = "logs"

# Built when first used: what only judges needs no schema for writing.
_STRICT = ConfigDict(extra="forbid", defer_build=True)
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ArmRecord:
    """How one arm was started, in full, so that a difference between arms can be read off."""

    label: str
    python: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class SessionRecord:
    """What was fixed before the first window. `purpose` is "ab" for a comparison and "calibration" for A/A noise."""

    schema: Literal[1]
    perfgate: str
    scenario: str
    workload_hash: str
    purpose: Literal["ab", "calibration"]
    begun_utc: str
    arms: Mapping[Arm, ArmRecord]
    model: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class WindowRecord:
    """One line of the index: a finished window, where it stands and where its raw output lies."""

    arm: Arm
    block: Annotated[int, Field(ge=1)]
    start: Annotated[int, Field(ge=1)]
    index: Annotated[int, Field(ge=0)]
    role: Role
    begun_s: Seconds
    ended_s: Seconds
    file: Annotated[str, Field(pattern=r"^windows/\d{4,6}\.jsonl\.gz$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    telemetry: Mapping[str, float] = Field(default_factory=dict)


@cache
def _session_adapter() -> TypeAdapter[SessionRecord]:
    return TypeAdapter(SessionRecord)


@cache
def _window_adapter() -> TypeAdapter[WindowRecord]:
    return TypeAdapter(WindowRecord)


class ResultWriter:
    """Append windows and events to a new result folder; each is on disk before the call returns."""

    def __init__(self, folder: Path, record: SessionRecord, scenario_text: str) -> None:
        """Create the folder. Raise EvidenceError if it already holds a session: results are never overwritten."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SESSION_FILE).exists():
                raise EvidenceError(f"{folder}: already holds a session; give a new folder, results are never overwritten")
            for name in (WINDOW_DIR, LOG_DIR):
                (folder / name).mkdir(exist_ok=True)
            write_atomically(folder / SCENARIO_FILE, scenario_text.encode())
            write_atomically(folder / SESSION_FILE, _dump(_session_adapter().dump_python(record, mode="json")))
        except OSError as error:
            raise EvidenceError(f"{folder}: cannot be written ({error}); choose another folder with --out") from error
        self._count = 0

    @property
    def logs(self) -> Path:
        """The folder for logs of servers and load generators."""
        return self.folder / LOG_DIR

    def add_event(self, event: str, at_s: float, **facts: str | float | None) -> None:
        """Append one line to the event log."""
        self._append(EVENTS_FILE, {"event": event, "at_s": round(at_s, 6), **facts})

    def add_problem(self, message: str, at_s: float) -> None:
        """Record a fact that voids the session; the reader turns it into an INVALID verdict."""
        self.add_event("problem", at_s, message=message)

    def add_window(self, raw: bytes, **place: Any) -> Path:
        """Store the load generator's output `raw`, then its index line, and return the file; `place` fills WindowRecord."""
        name = f"{WINDOW_DIR}/{self._count:04d}.jsonl.gz"
        # A fixed time stamp keeps equal bytes equal.
        packed = gzip.compress(raw, compresslevel=6, mtime=0)
        write_atomically(self.folder / name, packed)
        record = WindowRecord(file=name, sha256=hashlib.sha256(packed).hexdigest(), **place)
        self._append(INDEX_FILE, _window_adapter().dump_python(record, mode="json"))
        self._count += 1
        return self.folder / name

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that no reader ever sees half of it, and that it survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_results(folder: Path | str) -> tuple[Scenario, Session]:
    """Read a result folder, whole or cut off by a crash. Raise EvidenceError naming the file and the field that is wrong."""
    folder = Path(folder)
    record = read_record(folder)
    scenario = parse_scenario(_read(folder / SCENARIO_FILE).decode("utf-8", "replace"), str(folder / SCENARIO_FILE))
    events = list(_read_lines(folder / EVENTS_FILE))
    index = [_parse_line(line, folder / INDEX_FILE, number) for number, line in enumerate(_read_lines(folder / INDEX_FILE), 1)]
    problems = [str(event.get("message", "")) for event in events if event.get("event") == "problem"]
    windows = []
    for entry in index:
        window, problem = _load_window(folder, entry)
        windows.extend([window] if window else [])
        problems.extend([problem] if problem else [])
    session = Session(
        source=str(folder),
        scenario=record.scenario,
        workload_hash=record.workload_hash,
        fingerprints={arm: Fingerprint(facts=dict(found.facts)) for arm, found in record.arms.items()},
        windows=tuple(windows),
        problems=tuple(problems),
        is_complete=any(event.get("event") == "session_ended" for event in events),
        is_aa=is_same_arm(record),
    )
    return scenario, session


def read_record(folder: Path) -> SessionRecord:
    """Read `session.json`. Raise EvidenceError when the folder is no result folder or the file is broken."""
    if not folder.is_dir():
        raise EvidenceError(f"{folder}: no such result folder; give the folder that `perfgate run --out` wrote")
    path = folder / SESSION_FILE
    if not path.exists():
        raise EvidenceError(
            f"{folder}: holds no {SESSION_FILE}, so it is no result folder; give the one that `perfgate run` wrote"
        )
    try:
        return _session_adapter().validate_python(orjson.loads(_read(path)))
    except orjson.JSONDecodeError as error:
        raise EvidenceError(f"{path}: not valid JSON ({error}); the folder was damaged, measure again") from None
    except ValidationError as error:
        raise EvidenceError(f"{path}: {describe_first(error)}") from None


def is_same_arm(record: SessionRecord) -> bool:
    """True when both arms start the same build with the same settings: whatever differs between them is noise."""
    base, candidate = record.arms.get(Arm.BASE), record.arms.get(Arm.CANDIDATE)
    return base is not None and candidate is not None and replace(base, label="") == replace(candidate, label="")


def describe_first(error: ValidationError) -> str:
    """Turn the first of pydantic's complaints into `field: reason`."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "content"
    return f"{field}: {first['msg']}"


def _load_window(folder: Path, entry: WindowRecord) -> tuple[Window | None, str | None]:
    path = folder / entry.file
    if not path.exists():
        return None, f"{entry.file} is missing although the index names it: the folder was changed after the run; measure again"
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
        return None, f"{entry.file} does not match its digest: the raw data was changed after the run; measure again"
    window = Window(
        run=read_window(path),
        arm=entry.arm,
        block=entry.block,
        start=entry.start,
        index=entry.index,
        role=entry.role,
        begun_s=entry.begun_s,
        ended_s=entry.ended_s,
        telemetry=dict(entry.telemetry),
    )
    return window, None


def _parse_line(line: Mapping[str, Any], path: Path, number: int) -> WindowRecord:
    try:
        return _window_adapter().validate_python(line)
    except ValidationError as error:
        raise EvidenceError(f"{path}:{number}: {describe_first(error)}") from None


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield JSON objects; a last line without its newline was being written when the run died, and is no line."""
    if not path.exists():
        return
    *lines, _torn = _read(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise EvidenceError(f"{path}:{number}: not valid JSON ({error}); the folder was damaged, measure again") from None
        if not isinstance(value, dict):
            raise EvidenceError(f"{path}:{number}: expected a JSON object; the folder was damaged, measure again")
        yield value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from None
