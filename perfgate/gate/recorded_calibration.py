"""A baseline from sessions that were recorded before: the same as `perfgate calibrate` measures, without measuring again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from perfgate.core import Arm, FactDifference, Fingerprint
from perfgate.errors import CalibrationError, InputError
from perfgate.evidence import Session
from perfgate.gate.baselines import add_responses
from perfgate.gate.calibrate import RESPONSE_BLOCKS, build_from_sessions, find_injected, read_responses
from perfgate.gate.recorded_sessions import read_recorded
from perfgate.results.records import read_record
from perfgate.scenario.injections import parse_injection
from perfgate.scenario.schema import Scenario
from perfgate.serving.injection.injection import VARIABLE
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.differences import describe_difference, hardware_differences, host_differences
from perfgate.verdict.noise import Response
from perfgate.verdict.recorded import Recorded
from perfgate.verdict.validity.pairing import fix_rules, group_starts, pair_blocks

MAX_RATIO = 100.0
Compare = Callable[[Fingerprint, Fingerprint], tuple[FactDifference, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """A session whose candidate was slowed on purpose. `ratio` is what that was measured to cost; None: the folder says it."""

    folder: Path
    ratio: float | None = None


def parse_slowed(text: str) -> Slowed:
    """Read `RATIO:FOLDER` or `FOLDER`. Raise InputError for a ratio that no slow-down can have."""
    number, colon, folder = text.partition(":")
    try:
        ratio = float(number)
    except ValueError:
        return Slowed(folder=Path(text))
    if not colon or not folder or not isfinite(ratio) or not 0 < ratio <= MAX_RATIO:
        raise InputError(
            f"--injected {text}: expected RATIO:FOLDER with a ratio above 0 and at most {MAX_RATIO:g}, such as 0.03:slow"
        )
    return Slowed(folder=Path(folder), ratio=ratio)


def calibrate_from(scenario: Scenario, quiet: Sequence[Path], slowed: Sequence[Slowed]) -> Baseline:
    """Build a baseline from sessions of equal arms, and from sessions with a known slow-down what each metric shows of it.

    Raise InputError naming the folder that measured something else or whose arms are not what it is given as, and
    CalibrationError naming the one that is void.
    """
    recorded = [_read_same(scenario, folder) for folder in (*quiet, *(one.folder for one in slowed))]
    sessions = [one.session for one in recorded]
    for session in sessions[: len(quiet)]:
        if not session.is_aa:
            raise InputError(f"--from {session.source}: its arms differ, so it holds no noise; give it with --injected")
    for session in sessions[len(quiet) :]:
        if session.is_aa:
            raise InputError(f"--injected {session.source}: its arms are equal, nothing was injected; give it with --from")
        if count_blocks(scenario, session) < RESPONSE_BLOCKS:
            raise InputError(f"--injected {session.source}: has fewer than {RESPONSE_BLOCKS} whole blocks; leave it out")
    _require_one("other hardware", sessions, hardware_differences)
    # What answers a slow-down may come from another host; blocks of two hosts around the same GPU scatter like neither.
    _require_one("another host", sessions[: len(quiet)], host_differences)
    _require_names(quiet)
    baseline = build_from_sessions(scenario, recorded[: len(quiet)])
    responses = find_responses(scenario, baseline, slowed, sessions[len(quiet) :])
    newest = max((read_record(one.folder).begun_utc for one in slowed), default="")
    return add_responses(baseline, responses, newest) if responses else baseline


def count_blocks(scenario: Scenario, session: Session) -> int:
    """How many whole blocks of both arms a session holds."""
    return len(pair_blocks(group_starts(session), scenario.blocks.windows, fix_rules(scenario, {})))


def find_responses(
    scenario: Scenario, baseline: Baseline, slowed: Sequence[Slowed], sessions: Sequence[Session]
) -> dict[str, list[Response]]:
    """What each metric of `baseline` showed of each slow-down, in the order of `slowed`; `sessions` are theirs."""
    responses: dict[str, list[Response]] = {}
    for one, session in zip(slowed, sessions, strict=True):
        for name, response in read_responses(scenario, session, baseline, find_ratio(one, session)).items():
            responses.setdefault(name, []).append(response)
    return responses


def find_ratio(slowed: Slowed, session: Session) -> float:
    """The ratio given, else the one in the folder's own records. Raise InputError where they have none."""
    if slowed.ratio is not None:
        return slowed.ratio
    record = read_record(slowed.folder).arms.get(Arm.CANDIDATE)
    text = record.env.get(VARIABLE) if record is not None else None
    if text is None:
        raise InputError(
            f"--injected {slowed.folder}: its candidate ran without {VARIABLE}, so nothing says how much it was slowed; give "
            f"RATIO:{slowed.folder}"
        )
    return find_injected(parse_injection(text), session)


def _read_same(scenario: Scenario, folder: Path) -> Recorded:
    """Load a session. Raise InputError when it was measured by another scenario or design."""
    found, recorded = read_recorded(folder)
    pairs = (
        ("scenario", scenario.name, found.name),
        ("workload", scenario.workload_hash, found.workload_hash),
        ("windows per start", scenario.blocks.windows, found.blocks.windows),
        ("resident servers", scenario.blocks.resident, found.blocks.resident),
    )
    for what, wanted, measured in pairs:
        if wanted != measured:
            raise InputError(f"{folder}: {what}: {measured}, but the scenario has {wanted}; give {folder}/scenario.toml")
    return recorded


def _require_one(what: str, sessions: Sequence[Session], compare: Compare) -> None:
    """Raise InputError naming the first session on another machine, or around the same GPU in another host, than the first."""
    first = _find_machine(sessions[0])
    for session in sessions[1:]:
        if differences := compare(_find_machine(session), first):
            found = describe_difference(differences[0])
            raise InputError(f"{session.source}: ran on {what} than {sessions[0].source} ({found}); leave one out")


def _find_machine(session: Session) -> Fingerprint:
    if Arm.BASE not in session.fingerprints:
        raise CalibrationError(f"{session.source}: has no base arm, so it says nothing of noise; give sessions of both arms")
    return session.fingerprints[Arm.BASE]


def _require_names(folders: Sequence[Path]) -> None:
    """Blocks are told apart by the name of their session."""
    names = [folder.name for folder in folders]
    if again := next((folder for folder in folders if names.count(folder.name) > 1), None):
        raise InputError(f"--from {again}: another folder has that name; a session counts once, rename one that is another")
