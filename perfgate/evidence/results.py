"""The result folder: raw windows, written once and never changed, from which every verdict is recomputed.

Layout: `session.json` (what was fixed before the first window), `scenario.toml` (the text as it was read),
`windows/NNNN.jsonl.gz` (the load generator's own output, one file a window), `windows.jsonl` (one line per finished window: its
place, its file and the file's digest), `events.jsonl` (everything that happened), `logs/`. A window exists once its line does,
so a crash loses at most the window in flight. A session that goes on after a crash measures the block that was cut anew: the
event `resumed` names the windows that it supersedes, which stay on disk and in the index and are judged by nobody.
`answers/start-NN.json.gz` and `answers.jsonl` hold what each server answered to the fixed prompts, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.core import Arm, Fingerprint, Role, Session, Window
from perfgate.errors import EvidenceError
from perfgate.evidence.answers import load_answers
from perfgate.evidence.bench_serving import read_window
from perfgate.evidence.equivalence import check_answered, check_equivalence, describe_equivalence
from perfgate.evidence.expectations import check_expectations
from perfgate.evidence.journal import (
    WindowFiles,
    append_line,
    cut_torn_line,
    find_damage,
    read_bytes,
    read_lines,
    write_atomically,
)
from perfgate.evidence.timing import measure_time
from perfgate.safeguards import Expect
from perfgate.scenario import Scenario, parse_scenario

SCHEMA = 1
SESSION_FILE = "session.json"
SCENARIO_FILE = "scenario.toml"
INDEX_FILE = "windows.jsonl"
EVENTS_FILE = "events.jsonl"
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
    """What was fixed before the first window. `purpose` is "ab" for a comparison and "calibration" for A/A noise.

    `rule` is the version of the rule that was to judge, `looks` the block counts at which it may stop; empty in older folders.
    `checks` names what each server start must be put to besides its windows, `expect` what must be seen of the candidate.
    """

    schema: Literal[1]
    perfgate: str
    scenario: str
    workload_hash: str
    purpose: Literal["ab", "calibration"]
    begun_utc: str
    arms: Mapping[Arm, ArmRecord]
    model: Mapping[str, str]
    notes: tuple[str, ...] = ()
    rule: str = ""
    looks: tuple[int, ...] = ()
    checks: tuple[Literal["equivalence"], ...] = ()
    expect: Expect = field(default_factory=Expect)


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
    """Append windows and events to a result folder; each is on disk before the call returns, or OSError is raised."""

    def __init__(self, folder: Path, record: SessionRecord, scenario_text: str) -> None:
        """Begin a session. Raise EvidenceError if the folder already holds one: results are never overwritten."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / SESSION_FILE).exists():
                raise EvidenceError(f"{folder}: already holds a session; go on with --resume, or give a new folder")
            (folder / LOG_DIR).mkdir(exist_ok=True)
            write_atomically(folder / SCENARIO_FILE, scenario_text.encode())
            write_atomically(folder / SESSION_FILE, _dump(dump_record(record)))
            self._open(folder)
        except OSError as error:
            raise EvidenceError(f"{folder}: cannot be written ({error}); choose another folder with --out") from error

    @classmethod
    def reopen(cls, folder: Path) -> Self:
        """Go on behind what a folder holds; a last line that was being written when the run died is taken away."""
        writer = cls.__new__(cls)
        writer._open(folder)  # noqa: SLF001 - its own
        return writer

    def _open(self, folder: Path) -> None:
        self.folder = folder
        for name in (INDEX_FILE, EVENTS_FILE):
            cut_torn_line(folder / name)
        self._files = WindowFiles(folder)

    @property
    def logs(self) -> Path:
        """The folder for logs of servers and load generators."""
        return self.folder / LOG_DIR

    def add_event(self, event: str, at_s: float, **facts: str | float | Sequence[str] | None) -> None:
        """Append one line to the event log."""
        append_line(self.folder / EVENTS_FILE, {"event": event, "at_s": round(at_s, 6), **facts})

    def add_problem(self, message: str, at_s: float) -> None:
        """Record a fact that voids the session; the reader turns it into an INVALID verdict."""
        self.add_event("problem", at_s, message=message)

    def add_window(self, raw: bytes, **place: Any) -> Path:
        """Store the load generator's output `raw`, then its index line, and return the file; `place` fills WindowRecord."""
        name, digest = self._files.add(raw)
        record = WindowRecord(file=name, sha256=digest, **place)
        append_line(self.folder / INDEX_FILE, _window_adapter().dump_python(record, mode="json"))
        return self.folder / name


def dump_record(record: SessionRecord) -> dict[str, Any]:
    """The content of `session.json`."""
    content: dict[str, Any] = _session_adapter().dump_python(record, mode="json")
    return content


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def load_results(folder: Path | str) -> tuple[Scenario, Session]:
    """Read a result folder, whole or cut off by a crash. Raise EvidenceError naming the file and the field that is wrong."""
    folder = Path(folder)
    record = read_record(folder)
    scenario = parse_scenario(read_bytes(folder / SCENARIO_FILE).decode("utf-8", "replace"), str(folder / SCENARIO_FILE))
    events = list(read_lines(folder / EVENTS_FILE))
    index = read_entries(folder)
    problems = [str(event.get("message", "")) for event in events if event.get("event") == "problem"]
    gone = find_superseded(events)
    windows: list[Window] = []
    superseded: list[Window] = []
    for entry in index:
        window, problem = _load_window(folder, entry)
        (superseded if entry.file in gone else windows).extend([window] if window else [])
        problems.extend([problem] if problem else [])
    problems.extend(_find_superseded_problems(superseded, scenario))
    answers = load_answers(folder)
    problems.extend(check_equivalence(answers, scenario.equivalence))
    if "equivalence" in record.checks:
        problems.extend(check_answered(windows, answers))
    if any(event.get("event") == "block_ended" for event in events):
        problems.extend(check_expectations(folder, record.expect, events))
    session = Session(
        source=str(folder),
        scenario=record.scenario,
        workload_hash=record.workload_hash,
        fingerprints={arm: Fingerprint(facts=dict(found.facts)) for arm, found in record.arms.items()},
        windows=tuple(windows),
        superseded=tuple(superseded),
        timing=measure_time(events, windows, superseded),
        problems=tuple(dict.fromkeys(problems)),
        is_complete=any(event.get("event") == "session_ended" for event in events),
        is_aa=is_same_arm(record),
        equivalence=describe_equivalence(answers, scenario.equivalence),
    )
    return scenario, session


def find_superseded(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Name the files of windows that were measured anew after a break."""
    lists = (event.get("superseded") for event in events if event.get("event") == "resumed")
    return frozenset(str(file) for files in lists if isinstance(files, list) for file in files)


def _find_superseded_problems(windows: Iterable[Window], scenario: Scenario) -> Iterator[str]:
    """What a cut block showed before it was cut: a break must not wash away a request that failed."""
    for window in windows:
        found = list(window.run.problems)
        if window.run.completed != scenario.load.num_prompts:
            found.append(f"{window.run.completed} of {scenario.load.num_prompts} requests completed; measure again")
        yield from (f"block {window.block}, {window.arm.value}, before it was cut off: {problem}" for problem in found)


def read_entries(folder: Path) -> list[WindowRecord]:
    """Read the index of a result folder: a line for each finished window."""
    path = folder / INDEX_FILE
    return [_parse_line(line, path, number) for number, line in enumerate(read_lines(path), start=1)]


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
        return _session_adapter().validate_python(orjson.loads(read_bytes(path)))
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
    if damage := find_damage(folder, entry.file, entry.sha256):
        return None, damage
    try:
        run = read_window(folder / entry.file)
    except EvidenceError as error:
        return None, f"the load generator's output is no result: {error}"
    window = Window(
        run=run,
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
