"""The files of a result folder: what each says, and how it is read back.

Layout: `session.json` (what was fixed before the first window), `scenario.toml` (the text as it was read),
`windows/NNNN.jsonl.gz` (the load generator's own output, one file a window), `windows.jsonl` (one line per finished window: its
place, its file and the file's digest), `events.jsonl` (everything that happened), `logs/`. A window exists once its line does,
so a crash loses at most the window in flight. A session that goes on after a crash measures the block that was cut anew: the
event `resumed` names the windows that it supersedes, which stay on disk and in the index and are not judged.
A session that has ended may be packed: its raw files lie in `raw.tar.xz` then (`perfgate.results.raw.pack`), under the same
names.
`answers/start-NN.json.gz` and `answers.jsonl` hold what each server answered to the fixed prompts, in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass as plain
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass

from perfgate.core import Arm, Role
from perfgate.errors import EvidenceError
from perfgate.evidence import Damage, DamageKind
from perfgate.results.words import describe_damage
from perfgate.scenario.safeguards import Check, Expect
from perfgate.storage.bounded import require_plain
from perfgate.storage.journal import DAMAGED, Time, read_bytes, read_json, read_records
from perfgate.storage.places import open_folder, write_file
from perfgate.storage.schema import STRICT, Number, Sha256, dump, parse_json
from perfgate.storage.stream import read_written
from perfgate_moe.proof.values import KernelProof

SESSION_FILE = "session.json"
SCENARIO_FILE = "scenario.toml"
INDEX_FILE = "windows.jsonl"
EVENTS_FILE = "events.jsonl"
LOG_DIR = "logs"
HANDED_OVER = "handed over by another job: texts, paths and settings were left behind"
"""The note of a session that another job measured. Readers know it by other signs, so no report repeats it."""

BASE_TREE, CANDIDATE_TREE = "sglang-base", "sglang-head"
"""What commands call the working trees of a session whose Pythons were left behind; its reader makes them."""

# Built when first used: what only judges needs no schema for writing.
Seconds = Annotated[float, Field(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ArmRecord:
    """How one arm was started, in full, so that a difference between arms can be read off."""

    label: str
    python: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class FolderRecord:
    """What was fixed before the first window of a session or a matrix.

    `inherited` are the variables that steer engines and that servers of all arms took over from the measuring command; None in
    older folders. `text_sha256` is the digest of the scenario or matrix beside it, whose margins nothing else repeats; the
    writer fills it in, and older folders have none.
    """

    schema: Literal[1]
    perfgate: str
    begun_utc: Time
    model: Mapping[str, str]
    inherited: Mapping[str, str] | None = None
    text_sha256: Sha256 | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class SessionRecord(FolderRecord):
    """What was fixed before the first window of a session. `purpose` is "ab" for a comparison and "calibration" for A/A noise.

    `rule` is the version of the rule that was to judge, `looks` the block counts at which it may stop; empty in older folders.
    `checks` names what servers must be put to besides their windows, `expect` what must be seen of the candidate.
    `scenarios_in_pr` share one error budget. `has_base` is False where no base can be built, so that a candidate measured alone
    is the last word. `kernels` is what was found out of both arms' kernels beforehand, if that was asked. `notes` are sentences
    that every reader of the session is to see, such as what could not be verified of an engine.
    """

    scenario: str
    workload_hash: str
    purpose: Literal["ab", "calibration"]
    arms: Mapping[Arm, ArmRecord]
    notes: tuple[str, ...] = ()
    rule: str = ""
    looks: tuple[int, ...] = ()
    checks: tuple[Check, ...] = ()
    expect: Expect = field(default_factory=Expect)
    scenarios_in_pr: Number = 1
    has_base: bool = True
    kernels: KernelProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class IndexLine:
    """A finished window: its place within a start, and where its raw output lies."""

    start: Number
    index: Annotated[int, Field(ge=0)]
    role: Role
    begun_s: Seconds
    ended_s: Seconds
    file: Annotated[str, Field(pattern=r"^windows/\d{4,6}\.jsonl\.gz$")]
    sha256: Sha256
    telemetry: Mapping[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class WindowRecord(IndexLine):
    """One line of a session's index: the window of an arm in a block."""

    arm: Arm
    block: Number


@plain(frozen=True, slots=True, kw_only=True)
class FolderLayout:
    """What sets the folders of a session and of a matrix apart.

    `record_file` holds what was fixed before the first window, and marks the folder as begun; `text_file` holds what was to be
    measured, as it was read; `line` is what the index consists of.
    """

    what: str
    record_file: str
    text_file: str
    line: type[IndexLine]


SESSION_LAYOUT = FolderLayout(what="session", record_file=SESSION_FILE, text_file=SCENARIO_FILE, line=WindowRecord)


def read_record(folder: Path) -> SessionRecord:
    """Read `session.json`. Raise EvidenceError for no result folder, one that leads out of itself, or a broken file."""
    if not folder.is_dir():
        raise EvidenceError(f"{folder}: no such result folder; give the folder that `perfgate run --out` wrote")
    path = folder / SESSION_FILE
    if not path.exists():
        raise EvidenceError(
            f"{folder}: holds no {SESSION_FILE}, so it is no result folder; give the one that `perfgate run` wrote"
        )
    require_plain(folder)
    return read_json(path, SessionRecord, DAMAGED)


def read_text(path: Path, record: FolderRecord) -> tuple[str, Damage | None]:
    """The scenario or matrix in `path`, and what is wrong with it: it is not the text with which its folder was begun."""
    content = read_bytes(path)
    is_own = record.text_sha256 in {None, hashlib.sha256(content).hexdigest()}
    other = None if is_own else Damage(kind=DamageKind.OTHER_TEXT, file=path.name, detail="its digest differs")
    return content.decode("utf-8", "replace"), other


def require_text(path: Path, record: FolderRecord) -> str:
    """The same text. Raise EvidenceError where it is not the one with which its folder was begun."""
    text, damage = read_text(path, record)
    if damage:
        raise EvidenceError(f"{path.parent}: {describe_damage(damage)}")
    return text


def read_entries(folder: Path) -> list[WindowRecord]:
    """Read the index of a result folder: a line for each finished window."""
    return read_records(folder / INDEX_FILE, WindowRecord, DAMAGED)


def find_superseded(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Name the files of windows that were measured anew after a break."""
    lists = (event.get("superseded") for event in events if event.get("event") == "resumed")
    return frozenset(str(file) for files in lists if isinstance(files, list) for file in files)


def is_same_arm(record: SessionRecord) -> bool:
    """True when both arms start the same build with the same settings: whatever differs between them is noise."""
    base, candidate = record.arms.get(Arm.BASE), record.arms.get(Arm.CANDIDATE)
    return base is not None and candidate is not None and replace(base, label="") == replace(candidate, label="")


def is_handed_over(record: SessionRecord) -> bool:
    """True when another job measured it and left behind how the arms were started."""
    return any(not arm.argv for arm in record.arms.values())


def list_options(record: SessionRecord) -> tuple[str, ...]:
    """What sets the arms apart, as options of `perfgate gate`; arms of a hand-off become working trees of one's own."""
    base, candidate = record.arms.get(Arm.BASE), record.arms.get(Arm.CANDIDATE)
    if base is None or candidate is None:
        return ()
    is_apart = base.python != candidate.python
    if is_apart and not base.argv:
        # A hand-off leaves paths behind: what is left names nothing on this machine.
        return "--checkout", BASE_TREE, "--candidate-checkout", CANDIDATE_TREE
    options = ["--python", base.python, "--candidate-python", candidate.python] * is_apart
    extra = candidate.argv[len(base.argv) :] if candidate.argv[: len(base.argv)][1:] == base.argv[1:] else ()
    options += [f"--candidate-arg={argument}" for argument in extra]
    changed = sorted(set(candidate.env.items()) - set(base.env.items()))
    return (*options, *(word for name, value in changed for word in ("--candidate-env", f"{name}={value}")))


def load_proof(path: Path) -> KernelProof:
    """Read a proof. Raise InputError naming the file and the first field that is wrong."""
    try:
        content = read_written(path)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}); `perfgate kernels prove` writes one") from None
    return parse_json(content, KernelProof, path, "run `perfgate kernels prove` anew")


def save_proof(proof: KernelProof, path: Path) -> None:
    """Write a proof, whole or not at all. Raise InputError where that cannot be."""
    content = orjson.dumps(dump(proof), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    open_folder(path.parent, "--output")
    write_file(content, path, "--output")
