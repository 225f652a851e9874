"""The result folder, read: a session in the form that the judge takes, computed from raw windows each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from perfgate.core import Fingerprint, Role, Window
from perfgate.errors import EvidenceError
from perfgate.evidence import Damage, DamageKind, DriverProblem, Session, Timing
from perfgate.readers.bench_serving import read_window
from perfgate.results.answers import load_answers, read_marks
from perfgate.results.expert_use import has_use, load_use
from perfgate.results.folders import read_whole
from perfgate.results.footprint import add_footprint, read_starts
from perfgate.results.profiling.profiles import read_seen
from perfgate.results.raw.pack import find_damage
from perfgate.results.records import (
    EVENTS_FILE,
    HANDED_OVER,
    INDEX_FILE,
    SCENARIO_FILE,
    SESSION_FILE,
    IndexLine,
    SessionRecord,
    WindowRecord,
    find_superseded,
    is_handed_over,
    is_same_arm,
    list_options,
    read_entries,
    read_record,
    read_text,
)
from perfgate.scenario.catalog import list_scenarios
from perfgate.scenario.safeguards import Check
from perfgate.scenario.schema import Scenario, parse_scenario
from perfgate.storage.journal import read_lines


def measure_time(events: Sequence[Mapping[str, Any]], windows: Sequence[Window]) -> Timing | None:
    """Sum up what `events` and windows tell, in seconds; None where nothing was written down.

    The session took as long as the last moment that its folder knows of, on a clock that stands still while a session that was
    cut off rests.
    """
    last_s = max((*map(_read_moment, events), *(window.ended_s for window in windows)), default=0.0)
    if not 0 < last_s < inf:
        return None
    return Timing(
        took_s=last_s,
        starting_s=_measure_starts(events),
        warming_s=_sum(window for window in windows if window.role is Role.WARMUP),
        measuring_s=_sum(window for window in windows if window.role is not Role.WARMUP),
    )


def _sum(windows: Iterable[Window]) -> float:
    return sum(window.ended_s - window.begun_s for window in windows)


def _read_moment(event: Mapping[str, Any]) -> float:
    at_s = event.get("at_s")
    return float(at_s) if isinstance(at_s, int | float) else 0.0


def _measure_starts(events: Iterable[Mapping[str, Any]]) -> float:
    """Time during which at least one server was started and not yet ready; two that load side by side count once."""
    total_s = begun_s = 0.0
    loading = 0
    for event in events:
        at_s = _read_moment(event)
        match event.get("event"):
            case "server_started":
                begun_s = begun_s if loading else at_s
                loading += 1
            case "server_ready" if loading:
                loading -= 1
                total_s += 0.0 if loading else at_s - begun_s
            case "resumed":
                loading = 0
    return total_s


def load_results(folder: Path | str) -> tuple[Scenario, Session]:
    """Read a result folder, whole or cut off by a crash. Raise EvidenceError naming the file and the field that is wrong."""
    folder = Path(folder)
    record = read_record(folder)
    text, other_text = read_text(folder / SCENARIO_FILE, record)
    scenario = parse_scenario(text, str(folder / SCENARIO_FILE))
    other_text = other_text or _find_other_looks(record, scenario)
    events = list(read_lines(folder / EVENTS_FILE))
    entries = read_entries(folder)
    ended = {read_whole(event, "block") for event in events if event.get("event") == "block_ended"}
    windows, superseded, damage = load_windows(folder, entries, scenario, events, ended)
    expert_use, lost = load_use(folder, tuple(record.arms))
    session = Session(
        source=str(folder),
        scenario=record.scenario,
        workload_hash=record.workload_hash,
        fingerprints={arm: Fingerprint(facts=dict(found.facts)) for arm, found in record.arms.items()},
        windows=windows,
        superseded=superseded,
        timing=measure_time(events, windows),
        problems=tuple(
            DriverProblem(message=str(event.get("message", ""))) for event in events if event.get("event") == "problem"
        ),
        damage=(
            *damage,
            *lost,
            *_find_other_arms(entries, events),
            *filter(None, (other_text, _find_slowed(record, events))),
        ),
        is_complete=any(event.get("event") == "session_ended" for event in events),
        is_aa=is_same_arm(record),
        is_handed_over=is_handed_over(record),
        has_base=record.has_base,
        scenarios_in_pr=record.scenarios_in_pr,
        reproduce=(name_scenario(folder, record.scenario), *list_options(record)),
        checks=_list_checks(folder, record),
        expect=record.expect,
        answers=tuple(load_answers(folder)),
        marks=read_marks(events),
        kernels=record.kernels,
        seen=read_seen(folder, record.expect, events) if ended else None,
        expert_use=expert_use,
        notes=tuple(note for note in record.notes if note != HANDED_OVER),
    )
    return scenario, session


def load_windows(
    folder: Path,
    index: Sequence[WindowRecord],
    scenario: Scenario,
    events: Sequence[Mapping[str, Any]],
    ended: set[int],
) -> tuple[tuple[Window, ...], tuple[Window, ...], list[Damage]]:
    """The windows that are judged, those that were measured anew after a break, and what is missing or was changed.

    `ended` are the blocks that were measured to their end, so that no --resume measures them.
    """
    gone, starts = find_superseded(events), read_starts(events)
    windows: list[Window] = []
    superseded: list[Window] = []
    damage: list[Damage] = []
    if index and not events:
        damage.append(Damage(kind=DamageKind.NO_EVENTS, file=EVENTS_FILE))
    for entry in index:
        found = _load_window(folder, entry)
        if isinstance(found, Damage):
            damage.append(found)
        else:
            (superseded if entry.file in gone else windows).append(_add_footprint(found, starts, scenario))
    damage += [Damage(kind=DamageKind.DISORDERED, file=file) for file in (*find_disordered(index), *_find_early(events))]
    left = {entry.block for entry in index if entry.file not in gone}
    damage += [Damage(kind=DamageKind.NO_WINDOWS, file=INDEX_FILE, detail=str(block)) for block in sorted(ended - left)]
    return tuple(windows), tuple(superseded), damage


def find_disordered(index: Iterable[IndexLine]) -> list[str]:
    """Files that are numbered against the order of time: of two windows whose files were exchanged the digests say nothing."""
    numbered = sorted(index, key=lambda entry: int(Path(entry.file).name.partition(".")[0]))
    return [after.file for before, after in pairwise(numbered) if after.begun_s < before.begun_s]


def _find_early(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The log of events where it has a start ready before it began: what a start took is told of another one."""
    begun: set[str] = set()
    for event in events:
        match event.get("event"):
            case "server_started":
                begun.add(str(event.get("start")))
            case "server_ready" if str(event.get("start")) not in begun:
                return [EVENTS_FILE]
    return []


def read_served(events: Iterable[Mapping[str, Any]], whose: str) -> dict[int, str]:
    """Whose server each start was, as the events tell: `whose` is "arm" in a session, "server" in a matrix."""
    begun = (event for event in events if event.get("event") == "server_started" and whose in event)
    return {event["start"]: str(event[whose]) for event in begun if isinstance(event.get("start"), int)}


def _find_other_arms(index: Sequence[WindowRecord], events: Sequence[Mapping[str, Any]]) -> list[Damage]:
    """Starts whose windows the index counts for another arm than the one that the events started."""
    started = read_served(events, "arm")
    wrong = {entry.start for entry in index if started.get(entry.start, entry.arm.value) != entry.arm.value}
    return [Damage(kind=DamageKind.OTHER_ARM, file=INDEX_FILE, detail=str(start)) for start in sorted(wrong)]


def _find_other_looks(record: SessionRecord, scenario: Scenario) -> Damage | None:
    """All that a record without a digest tells of the scenario; one look may be that of `--blocks`, whatever the text says."""
    if len(record.looks) < 2 or record.looks == scenario.blocks.looks:
        return None
    looks = ", ".join(map(str, record.looks))
    return Damage(kind=DamageKind.OTHER_TEXT, file=SCENARIO_FILE, detail=f"its looks were {looks}")


def _find_slowed(record: SessionRecord, events: Iterable[Mapping[str, Any]]) -> Damage | None:
    """An arm that slowed itself down beside its equal, whose loss would be stored as noise."""
    slowed = {str(event.get("arm")) for event in events if event.get("event") == "injected"}
    if len(slowed) != 1 or not is_same_arm(record) or is_handed_over(record):
        return None
    return Damage(kind=DamageKind.ONE_SLOWED, file=SESSION_FILE, detail=slowed.pop())


def _list_checks(folder: Path, record: SessionRecord) -> tuple[Check, ...]:
    """What servers were put to; older records do not say that expert use was measured, but what was stored of it does."""
    return record.checks if "expert_use" in record.checks or not has_use(folder) else (*record.checks, "expert_use")


def name_scenario(folder: Path, name: str) -> str:
    """What a command calls the scenario of a result folder: its name if it ships with perfgate, else the folder's copy."""
    return name if name in list_scenarios() else str(folder / SCENARIO_FILE)


def _add_footprint(window: Window, starts: Mapping[int, Mapping[str, float]], scenario: Scenario) -> Window:
    is_alone = scenario.blocks.resident == "one"
    run = add_footprint(window.run, starts.get(window.start, {}), window.telemetry, is_alone=is_alone)
    return replace(window, run=run)


def _load_window(folder: Path, entry: WindowRecord) -> Window | Damage:
    """A window of the index, or what is wrong with its file."""
    if damage := find_damage(folder, entry.file, entry.sha256):
        return damage
    try:
        run = read_window(folder / entry.file)
    except EvidenceError as error:
        return Damage(kind=DamageKind.NO_RESULT, file=entry.file, detail=str(error))
    return Window(
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
