"""Profiled windows in a result folder: the traces as the server wrote them, and an index with digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Arm
from perfgate.errors import EvidenceError
from perfgate.evidence import KernelProfile, KernelTrace, OfStart, Seen
from perfgate.readers.traces import read_traces
from perfgate.results.profiling.attribution import Attribution, attribute, compare_code
from perfgate.results.profiling.host_counts import load_host
from perfgate.scenario.safeguards import Expect
from perfgate.storage.journal import append_record, read_records, write_atomically
from perfgate.storage.schema import STRICT, Number, Sha256, adapt

LOG_EVENT = "log_expected"
"""Event: the candidate's log was searched for `pattern`; `line` is the first that matches, or null."""

PROFILES_FILE = "profiles.jsonl"
PROFILE_DIR = "profiles"
KERNELS_FILE = "kernels.json"
"""What a hand-off tells of the profiles: numbers, without a trace."""
# The block of a server that was started for its profile alone.
FRESH = 0

CodeDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class _TraceFile:
    file: Annotated[str, Field(pattern=r"^profiles/start-\d{2,6}/[\w.=+-]+$")]
    sha256: Sha256


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class ProfileRecord:
    """One line of the index: which start was profiled for how many forward steps of how many requests.

    Block 0 is none: the server was started for the profile alone. `code` has a digest of the machine code of each kernel in the
    arm's own Triton cache, by name.
    """

    arm: Arm
    block: Annotated[int, Field(ge=0)]
    start: Number
    steps: Number
    prompts: Number
    traces: Annotated[tuple[_TraceFile, ...], Field(min_length=1)]
    code: Mapping[str, CodeDigest] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(OfStart):
    """One profiled window of `steps` forward steps. `traces` are its files, one a rank, `code` as in its record."""

    steps: int = 1
    prompts: int = 1
    traces: tuple[Path, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where its traces lie below the result folder."""
        return f"{PROFILE_DIR}/start-{self.start:02d}"

    def read(self) -> KernelTrace:
        """Sum its traces by name. Raise EvidenceError naming the file that is none."""
        return read_traces(self.traces)


def store_profile(folder: Path, profile: Profile, traces: Iterable[Path]) -> Profile:
    """Enter traces that lie in the result folder into its index."""
    files = tuple(traces)
    named = tuple(_TraceFile(file=str(path.relative_to(folder)), sha256=_digest(path)) for path in files)
    record = ProfileRecord(
        arm=profile.arm,
        block=profile.block,
        start=profile.start,
        steps=profile.steps,
        prompts=profile.prompts,
        traces=named,
        code=profile.code,
    )
    append_record(folder / PROFILES_FILE, record)
    return replace(profile, traces=files)


def load_profiles(folder: Path) -> list[Profile]:
    """Read which windows were profiled. Raise EvidenceError for a damaged index or a trace that is not what was stored."""
    hint = "the folder was damaged, profile again"
    return [_load(folder, record) for record in read_records(folder / PROFILES_FILE, ProfileRecord, hint)]


def _load(folder: Path, record: ProfileRecord) -> Profile:
    for trace in record.traces:
        if not (folder / trace.file).is_file():
            raise EvidenceError(f"{folder / trace.file}: is missing although the index names it; profile again")
        if _digest(folder / trace.file) != trace.sha256:
            raise EvidenceError(
                f"{folder / trace.file}: does not match its digest: it was changed after the run; profile again"
            )
    return Profile(
        arm=record.arm,
        block=record.block,
        start=record.start,
        steps=record.steps,
        prompts=record.prompts,
        traces=tuple(folder / trace.file for trace in record.traces),
        code=record.code,
    )


def read_seen(folder: Path, expect: Expect, events: Iterable[Mapping[str, Any]]) -> Seen:
    """Read what the arms showed after the first block: of the log what was searched for, of profiles those that are needed.

    Block 0 is a server that was started afterwards: it tells nothing of those that were measured.
    """
    log = frozenset(str(event.get("pattern")) for event in events if event.get("event") == LOG_EVENT and event.get("line"))
    if not expect.needs_profile:
        return Seen(log=log)
    try:
        found = [profile for profile in load_profiles(folder) if profile.block != FRESH]
    except EvidenceError as error:
        return Seen(log=log, problem=str(error))
    last = {profile.arm: profile for profile in found if profile.arm is Arm.CANDIDATE or expect.is_difference}
    return Seen(log=log, profiles=tuple(_read_kernels(profile) for profile in last.values()))


def _read_kernels(profile: Profile) -> KernelProfile:
    found = KernelProfile(arm=profile.arm, block=profile.block, start=profile.start, steps=profile.steps)
    try:
        return replace(found, trace=profile.read())
    except EvidenceError as error:
        return replace(found, problem=str(error))


def read_attribution(folder: Path) -> Attribution | str | None:
    """Compare the arms as the result folder holds them: None when they were not profiled, a reason when that cannot be read."""
    try:
        found = attribute_profiles(load_profiles(folder))
        return _read_numbers(folder) if found is None else replace(found, host=load_host(folder))
    except EvidenceError as error:
        return str(error)


def store_numbers(folder: Path, found: Attribution) -> None:
    """Keep an attribution whose traces stayed elsewhere."""
    write_atomically(
        folder / KERNELS_FILE, orjson.dumps(asdict(found), option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
    )


def _read_numbers(folder: Path) -> Attribution | None:
    path = folder / KERNELS_FILE
    if not path.is_file():
        return None
    try:
        return adapt(Attribution).validate_json(path.read_bytes())
    except ValidationError as error:
        raise EvidenceError(f"{path}: {error.errors()[0]['msg']}; the folder was damaged, unpack the hand-off again") from None


def attribute_profiles(profiles: Sequence[Profile]) -> Attribution | None:
    """Compare the last profile of each arm; None unless both were profiled. Raise EvidenceError for traces that are none."""
    last = {profile.arm: profile for profile in profiles}
    if len(last) < len(Arm):
        return None
    base, candidate = last[Arm.BASE], last[Arm.CANDIDATE]
    # Ranks run side by side: a step's time is that of one of them.
    steps = {profile.arm: profile.steps * max(len(profile.traces), 1) for profile in (base, candidate)}
    found = attribute(base.read(), candidate.read(), base_steps=steps[Arm.BASE], candidate_steps=steps[Arm.CANDIDATE])
    return compare_code(found, base.code, candidate.code)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
