"""Read the list of recorded sessions, and from each folder its blocks: windows of one fresh server per arm, and what they took.

The list is a TOML file of `[[session]]` tables (`co_tenant_study.py` reads its `[[co_tenant]]` tables):
- `folder`: a result folder, relative to the file; `*` in its name takes every folder that matches;
- `in_history`: the folder left the working tree for room, and `benchmarks.history` brings it back;
- `commit`: the same of a folder that is not in the commit that `benchmarks.history` knows: the one that holds it, in full;
- `kind`: "aa" (equal arms), "injected" (candidate slowed on purpose) or "change" (a real change of unknown size);
- `label`: what was done to the candidate, in a few words; an injected one is named by its injection, and needs none;
- `effect` and `effect_from`: the slow-down as it was measured elsewhere, and where. Left out, it is read from what the slowed
  servers said in their logs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.history import ROOT, restore, restore_all
from perfgate.core import ABSENT, Arm, Fingerprint, Window
from perfgate.errors import InputError
from perfgate.evidence import Session
from perfgate.gate.calibrate import PREFILL, find_step_ms
from perfgate.results.records import EVENTS_FILE, LOG_DIR, read_record
from perfgate.results.results import load_results
from perfgate.scenario.injections import Injection, parse_injection
from perfgate.scenario.schema import Scenario
from perfgate.serving.injection.injection import BATCHES, VARIABLE
from perfgate.serving.injection.injection_log import read_injected_us
from perfgate.storage.journal import read_lines
from perfgate.verdict.differences import HOST_FACTS
from perfgate.verdict.validity.admission import admit
from perfgate.verdict.validity.pairing import group_starts
from perfgate.verdict.validity.structure import AdmissionLimits

KINDS = ("aa", "injected", "change")
KEYS = {"folder", "in_history", "commit", "kind", "label", "effect", "effect_from"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the list."""

    folder: Path
    kind: str
    label: str = ""
    effect: float | None = None
    effect_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One whole block as it was recorded: windows of both starts, seconds from first start to last stop, GPUs."""

    session: str
    number: int
    windows: tuple[Window, ...]
    took_s: float
    gpus: int

    @property
    def machine_s(self) -> float:
        """Seconds of its GPUs together."""
        return self.took_s * self.gpus

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from every other block."""
        return self.session, self.number

    @property
    def windows_s(self) -> float:
        """Seconds in which load was running, discarded windows included."""
        return sum(window.ended_s - window.begun_s for window in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One usable folder.

    `asked` is the injection as its slowed servers were given it, `spent_us` what their logs tell of it, in microseconds a step
    over all steps; `effect` is the same as a ratio of a decode step. None where it was not measured.
    """

    entry: Entry
    scenario: Scenario
    session: Session
    begun_utc: str
    blocks: tuple[Block, ...]
    injection: Injection | None = None
    asked: str = ""
    spent_us: float | None = None
    effect: float | None = None
    effect_from: str = ""

    @property
    def is_direct(self) -> bool:
        """Whether every step got longer by what was spent: not so for rare steps, nor where the GPU may hide a waiting host."""
        one = self.injection
        return one is None or (one.is_of_steps and one.kind not in {*BATCHES, "tail"} and one.period == 1)

    @property
    def is_known(self) -> bool:
        """Whether a calibration may store what metrics showed of it: what each step, or each step that prefills, spent."""
        return self.is_direct or (self.injection is not None and self.injection.kind == PREFILL and self.injection.period == 1)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.entry.folder.name

    @property
    def label(self) -> str:
        """What was done to the candidate: the words of the list, else the injection as its server was given it."""
        return self.entry.label or self.asked or self.entry.kind

    @property
    def machine(self) -> Fingerprint:
        """What its arms ran on."""
        return next(iter(self.session.fingerprints.values()))

    @property
    def cores(self) -> str:
        """How many cores the host has, as its fingerprint says."""
        return self.machine.facts.get("cores", ABSENT)

    @property
    def rig(self) -> tuple[object, ...]:
        """What the blocks of one session share: the host, and what its load generator and perfgate tell of a window."""
        facts = self.machine.facts
        return (*(facts.get(name, ABSENT) for name in HOST_FACTS), frozenset(self.session.windows[0].run.values))

    @property
    def design(self) -> tuple[str, str, int, str, str]:
        """What two recordings must share to be judged by one another's noise; the machine's kind is the last."""
        blocks = self.scenario.blocks
        return self.scenario.name, self.scenario.workload_hash, blocks.windows, blocks.resident, self.machine.hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A folder of the list that gives no evidence, and why."""

    entry: Entry
    reason: str


def read_list(path: Path) -> tuple[Entry, ...]:
    """Read the list. Raise InputError naming the entry and the key that is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    rows = content.get("session", [])
    if not isinstance(rows, list) or not rows or content.keys() - {"session", "co_tenant"}:
        raise InputError(f"{path}: expected [[session]] and [[co_tenant]] tables and nothing else")
    entries = [_read_entry(row, path.parent, f"{path}: session {number}") for number, row in enumerate(rows, 1)]
    return tuple(one for entry in entries for one in _expand(entry))


def _expand(entry: Entry) -> list[Entry]:
    """Every folder that an entry names; the entry itself where none matches, so that it is told as missing."""
    matches = sorted(entry.folder.parent.glob(entry.folder.name), key=_find_place) if "*" in entry.folder.name else []
    return [replace(entry, folder=match) for match in matches] or [entry]


def _find_place(folder: Path) -> list[tuple[int, str]]:
    """Where a folder stands among others: gpu-3 before gpu-10."""
    return [(int(part or 0), word) for word, part in re.findall(r"(\D*)(\d*)", folder.name)]


def _read_entry(row: Mapping[str, Any], parent: Path, where: str) -> Entry:
    if unknown := sorted(row.keys() - KEYS):
        raise InputError(f"{where}: {unknown[0]}: no such key; the keys are {', '.join(sorted(KEYS))}")
    if missing := sorted({"folder", "kind"} - row.keys()):
        raise InputError(f"{where}: {missing[0]} is missing")
    if row["kind"] not in KINDS:
        raise InputError(f"{where}: kind: {row['kind']!r} is none of {', '.join(KINDS)}")
    if row["kind"] != "injected" and not row.get("label"):
        raise InputError(f"{where}: label is missing; only an injected session is named by what its server was given")
    effect = row.get("effect")
    if effect is not None and (not isinstance(effect, int | float) or not isfinite(effect) or effect <= 0):
        raise InputError(f"{where}: effect: {effect!r} is no positive ratio")
    if ("effect" in row) != ("effect_from" in row):
        raise InputError(f"{where}: effect and effect_from belong together: a size, and where it was measured")
    told = {key: value for key, value in row.items() if key not in {"in_history", "commit"}}
    return Entry(**{**told, "folder": _find_folder(row, parent, where)})


def _find_folder(row: Mapping[str, Any], parent: Path, where: str) -> Path:
    folder: Path = parent / row["folder"]
    if "commit" in row and (row.get("in_history") or "*" in folder.name):
        raise InputError(f"{where}: commit: names one folder, without `*` and without in_history")
    if "commit" in row:
        return restore(row["commit"], folder.resolve().relative_to(ROOT).as_posix())
    return restore_all(folder.parent) / folder.name if row.get("in_history") else folder


def read_recordings(entries: tuple[Entry, ...]) -> tuple[list[Recording], list[Skipped]]:
    """Read every folder that can be read and trusted; the others are told with their reason."""
    found: list[Recording] = []
    skipped: list[Skipped] = []
    for entry in entries:
        try:
            found.append(read_recording(entry))
        except InputError as error:
            skipped.append(Skipped(entry=entry, reason=str(error).removeprefix(f"{entry.folder}: ")))
    return found, skipped


def read_recording(entry: Entry) -> Recording:
    """Read one folder. Raise InputError when it is not there, void, or not of the kind that the list says."""
    scenario, session = load_results(entry.folder)
    if problems := admit(session, AdmissionLimits(scenario=scenario, gated=tuple(scenario.gates))):
        raise InputError(f"{entry.folder}: void: {problems[0]}")
    if session.is_aa != (entry.kind == "aa"):
        raise InputError(f"{entry.folder}: its arms are {'equal' if session.is_aa else 'not equal'}, so it is not {entry.kind}")
    blocks = tuple(list_blocks(entry.folder, scenario, session))
    if not blocks:
        raise InputError(f"{entry.folder}: holds no whole block")
    record = read_record(entry.folder)
    text = record.arms[Arm.CANDIDATE].env.get(VARIABLE)
    injection = parse_injection(text) if text else None
    spent_us = read_injected_us(sorted((entry.folder / LOG_DIR).glob(f"server-*-{Arm.CANDIDATE.value}.log")))
    effect, effect_from = find_effect(entry, session, injection, spent_us)
    return Recording(
        entry=entry,
        scenario=scenario,
        session=session,
        begun_utc=record.begun_utc,
        blocks=blocks,
        injection=injection,
        asked=text or "",
        spent_us=spent_us,
        effect=effect,
        effect_from=effect_from,
    )


def list_blocks(folder: Path, scenario: Scenario, session: Session) -> Iterator[Block]:
    """The blocks that have all windows of both arms, in the order of time."""
    events = list(read_lines(folder / EVENTS_FILE))
    begins = {event["start"]: float(event["at_s"]) for event in events if event.get("event") == "server_started"}
    ends = {event["block"]: float(event["at_s"]) for event in events if event.get("event") == "block_ended"}
    starts = group_starts(session)
    for number in sorted({start.block for start in starts}):
        mine = [start for start in starts if start.block == number]
        if {start.arm for start in mine if len(start.measured) == scenario.blocks.windows} != set(Arm):
            continue
        windows = tuple(sorted((w for w in session.windows if w.block == number), key=lambda window: window.begun_s))
        begun_s = min((begins[start.number] for start in mine if start.number in begins), default=windows[0].begun_s)
        took_s = ends.get(number, windows[-1].ended_s) - begun_s
        yield Block(session=folder.name, number=number, windows=windows, took_s=took_s, gpus=session.gpus)


def find_effect(
    entry: Entry, session: Session, injection: Injection | None, spent_us: float | None
) -> tuple[float | None, str]:
    """What the slow-down spent, as a ratio of a decode step, and where that comes from; None where nothing tells it.

    A decode step is as long as the base's median ITL. For a slow-down of some steps only, this is the mean over all of them.
    """
    if entry.kind != "injected":
        return None, ""
    if entry.effect is not None:
        return entry.effect, entry.effect_from
    if injection is not None and not injection.is_of_steps:
        return 0.0, "requests wait, and no step is longer"
    step_ms = find_step_ms(session)
    if spent_us is not None and step_ms is not None:
        return spent_us / (1000 * step_ms), "its servers' logs"
    if injection is not None and injection.is_ratio:
        return injection.amount, "as asked"
    return None, "not measured"


def renumber(block: Block, position: int, span_s: float, *, swapped: bool) -> tuple[Window, ...]:
    """The windows of `block` as the block at `position` (from 0) of another session; `swapped` exchanges the arms' labels."""
    numbers = {start: 2 * position + order for order, start in enumerate(dict.fromkeys(w.start for w in block.windows), 1)}
    shift_s = position * span_s - block.windows[0].begun_s
    other = {Arm.BASE: Arm.CANDIDATE, Arm.CANDIDATE: Arm.BASE}
    return tuple(
        replace(
            window,
            arm=other[window.arm] if swapped else window.arm,
            block=position + 1,
            start=numbers[window.start],
            begun_s=window.begun_s + shift_s,
            ended_s=window.ended_s + shift_s,
        )
        for window in block.windows
    )
