"""The ledger of releases: each against the one before it, measured by the gate, one small file a release."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Arm, Outcome, Window
from perfgate.engines.insides import order_version
from perfgate.engines.sglang_releases import ENGINE
from perfgate.errors import EvidenceError, InputError
from perfgate.gate.case import load_case
from perfgate.gate.gate import GateJob, name_calibration, run_gate
from perfgate.machine.fingerprint import read_fingerprint
from perfgate.metrics import METRICS
from perfgate.releases.registry import find_previous, list_versions
from perfgate.releases.suite import SCENARIO
from perfgate.report.escape import markdown
from perfgate.report.words import wording
from perfgate.results.folders import read_progressed
from perfgate.results.footprint import read_starts
from perfgate.results.raw.pack import PACK_FILE
from perfgate.results.raw.packer import pack_folder
from perfgate.results.records import EVENTS_FILE, LOG_DIR, SESSION_FILE, read_record
from perfgate.results.server_info import compare_infos, load_infos
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.engine_install import install_release
from perfgate.serving.progress import Progress
from perfgate.storage.journal import WINDOW_DIR, Time, read_json, read_lines
from perfgate.storage.places import open_folder, write_file
from perfgate.storage.rounding import format_interval
from perfgate.storage.schema import STRICT, Sha256, dump

SESSIONS = "sessions"
"""Where sessions lie, below the folder of environments: a row is small, and what it was computed from is not."""

HINT = "write it again with `perfgate ledger add`"

COLUMNS = ("output_tok_per_s", "median_itl_ms", "p99_itl_ms")
"""The metrics of the table that are judged: what a user feels."""

COSTS = ("ready_s", "server_memory_mib")
"""What a start costs, as medians: servers that load side by side share the machine, so the time to ready is not judged."""

HEAD = """# Releases of SGLang, each against an earlier one

Made by `perfgate ledger show`. A row is the verdict of one session, as `perfgate ledger add` wrote it. A row whose hardware
begins with `cpu-` tells of plumbing and of large relative changes, and nothing of a GPU. Any other row is of the GPU that it
names, and of its scenario alone.

| release | against | scenario | hardware | begun | verdict | {titles} | settings |
|:--|:--|:--|:--|:--|:--|{rules}--:|
"""


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class MetricChange:
    """Candidate over base minus one, and both ends of its interval (two-sided, 90 %); null where nothing could be said."""

    change: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.change is None or self.low is None or self.high is None:
            return wording.MISSING
        return f"{wording.percent(self.change)} ({format_interval(self.low, self.high)})"


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class LedgerRow:
    """One release against the one before it, on one kind of machine.

    `settings` are those that resolved differently: name, base, candidate. `costs` are medians by the names in COSTS and by arm.
    `sha256` and `size_bytes` are those of the session's packed raw windows, by which a kept session is known again;
    `elapsed_s` is how long the session took.
    """

    schema_version: Literal[1] = 1
    base: str
    candidate: str
    scenario: str
    hardware: str
    begun_utc: Time
    elapsed_s: Annotated[float, Field(ge=0)]
    rule: str
    outcome: Outcome
    blocks: Annotated[int, Field(ge=0)]
    metrics: Mapping[str, MetricChange]
    costs: Mapping[str, Mapping[Arm, float]]
    settings: tuple[tuple[str, str, str], ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    sha256: Sha256
    size_bytes: Annotated[int, Field(gt=0, lt=2**53)]

    @property
    def name(self) -> str:
        """What its file is called."""
        return name_row(self.candidate, self.scenario, self.hardware)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseStep:
    """Two releases to compare: their versions and Pythons, and the session's folder."""

    base: str
    candidate: str
    pythons: Mapping[Arm, Path]
    session: Path


def name_row(version: str, scenario: str, hardware: str) -> str:
    """What the file of a row is called."""
    return f"{ENGINE}-{version}-{scenario}-{hardware}.json"


def prepare_step(version: str, environments: Path, progress: Progress, torch_index: str | None = None) -> ReleaseStep:
    """Install a release and the one before it below `environments`, where they are not there yet.

    Raise InputError for a release that no registry has.
    """
    previous = find_previous(list_versions(ENGINE), version)
    pythons = {}
    for arm, release in ((Arm.BASE, previous), (Arm.CANDIDATE, version)):
        progress.step(f"{arm.value}: {ENGINE} {release}")
        pythons[arm] = install_release(release, environments / release, torch_index)
    session = environments / SESSIONS / f"{ENGINE}-{previous}-{version}"
    return ReleaseStep(base=previous, candidate=version, pythons=pythons, session=session)


def add_release(
    version: str, environments: Path, folder: Path, progress: Progress, torch_index: str | None = None
) -> LedgerRow:
    """Measure a release against the one before it, and write its row into `folder`.

    The session lies below `environments`; one that was cut off is gone on with, and one that ended is not measured again. Raise
    InputError for a release that no registry has or whose row is there, EvidenceError for an INVALID session.
    """
    row = folder / name_row(version, SCENARIO, read_fingerprint(sys.executable).facts["hardware"])
    if row.exists():
        raise InputError(f"{row}: is there already; delete it to add the release again")
    step = prepare_step(version, environments, progress, torch_index)
    if not is_measured(step.session):
        open_folder(folder, "--to")
        _measure(step, progress)
    return store_row(read_row(step.session), folder)


def add_session(version: str, session: Path, folder: Path) -> LedgerRow:
    """Write the row of a session that was measured elsewhere into `folder`; the session's own folder is only read.

    Of one that was cut off, whole blocks are judged, as `perfgate check` does; the row's warnings say so. Raise InputError for
    a session of anything but this release against an earlier one, or whose row is there, EvidenceError for an INVALID one.
    """
    _require_step(version, session)
    row = read_row(session, is_own=False)
    if (folder / row.name).exists():
        raise InputError(f"{folder / row.name}: is there already; delete it to add the release again")
    return store_row(row, folder)


def _require_step(version: str, session: Path) -> None:
    arms = read_record(session).arms
    if arms.keys() != set(Arm):
        raise InputError(f"{session}: has one arm only; give a session that compares two releases")
    base, candidate = (arms[arm].facts.get(ENGINE, "not there") for arm in Arm)
    if candidate != version:
        raise InputError(
            f"{session}: {ENGINE} of its candidate is {candidate}, not {version}; name the release that it measured"
        )
    if ENGINE not in arms[Arm.BASE].facts or order_version(base) >= order_version(candidate):
        raise InputError(f"{session}: {ENGINE} of its base is {base}, not earlier than {candidate}; measure an earlier base")
    labels = [arms[arm].label for arm in Arm]
    if labels[0] != labels[1]:
        raise InputError(
            f"{session}: its arms differ in more than the release ({labels[0]}, {labels[1]}); measure both with equal options"
        )


def is_measured(session: Path) -> bool:
    """Whether a session has ended."""
    return (session / SESSION_FILE).exists() and read_progressed(session).is_ended


def _measure(step: ReleaseStep, progress: Progress) -> None:
    text, source = read_scenario_text(SCENARIO)
    arms = {arm: ArmSpec(python=str(python)) for arm, python in step.pythons.items()}
    is_begun = step.session.exists() or name_calibration(step.session).exists()
    step.session.parent.mkdir(parents=True, exist_ok=True)
    job = GateJob(scenario=parse_scenario(text, source), text=text, arms=arms, folder=step.session, resume=is_begun)
    run_gate(job, progress)


def read_row(session: Path, *, is_own: bool = True) -> LedgerRow:
    """What a session says, judged from its raw windows. Raise EvidenceError for INVALID, and where no block is whole.

    The raw windows of one that is the ledger's own are packed, of another one only a copy of them is.
    """
    case = load_case(session)
    verdict, facts = case.verdict, case.session.fingerprints
    if verdict.outcome is Outcome.INVALID:
        raise EvidenceError(f"{session}: INVALID: {verdict.reasons[0]}; nothing was added: delete it, then measure again")
    if not verdict.blocks:
        raise EvidenceError(f"{session}: no block is whole; nothing was added: continue the session with --resume")
    packed = _pack(session, is_own=is_own)
    found = {one.metric: MetricChange(change=one.change, low=one.low, high=one.high) for one in verdict.judgements}
    return LedgerRow(
        base=facts[Arm.BASE].facts[ENGINE],
        candidate=facts[Arm.CANDIDATE].facts[ENGINE],
        scenario=verdict.scenario,
        hardware=verdict.hardware,
        begun_utc=read_record(session).begun_utc,
        elapsed_s=round(read_progressed(session).elapsed_s, 1),
        rule=str(verdict.policy["rule"]),
        outcome=verdict.outcome,
        blocks=verdict.blocks,
        metrics={metric: found[metric] for metric in COLUMNS if metric in found},
        costs=_measure_costs(session, case.session.windows),
        settings=tuple(compare_infos(load_infos(session))),
        reasons=verdict.reasons,
        warnings=verdict.warnings,
        sha256=hashlib.sha256(packed).hexdigest(),
        size_bytes=len(packed),
    )


def _pack(session: Path, *, is_own: bool) -> bytes:
    """The session's packed raw windows."""
    if not any((session / WINDOW_DIR).glob("*.gz")):
        return (session / PACK_FILE).read_bytes()
    if is_own:
        pack_folder(session)
        return (session / PACK_FILE).read_bytes()
    with tempfile.TemporaryDirectory(prefix="perfgate-ledger-") as folder:
        copy = Path(folder) / session.name
        try:
            shutil.copytree(session, copy, ignore=shutil.ignore_patterns(LOG_DIR))
        except shutil.Error as error:
            (_from, _to, reason), *_ = error.args[0]
            raise EvidenceError(f"{session}: cannot be copied ({reason}); set TMPDIR to a folder with room for it") from None
        pack_folder(copy, is_cut_off=True)
        return (copy / PACK_FILE).read_bytes()


def _measure_costs(folder: Path, windows: Sequence[Window]) -> dict[str, dict[Arm, float]]:
    starts = read_starts(read_lines(folder / EVENTS_FILE))
    found: dict[str, dict[Arm, float]] = {name: {} for name in COSTS}
    for arm in Arm:
        mine = [window for window in windows if window.arm is arm]
        begun = {window.start: starts.get(window.start, {}) for window in mine}
        ready = [phases["ready_s"] for phases in begun.values() if "ready_s" in phases]
        memory = [window.run.values["server_memory_mib"] for window in mine if "server_memory_mib" in window.run.values]
        for name, values in zip(COSTS, (ready, memory), strict=True):
            if values:
                found[name][arm] = median(values)
    return found


def store_row(row: LedgerRow, folder: Path) -> LedgerRow:
    """Write a row into a ledger, whole or not at all, and return it. Raise InputError where it cannot be written."""
    content = orjson.dumps(dump(row), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_file(content, open_folder(folder, "--to") / row.name, "--to")
    return row


def load_rows(folder: Path) -> list[LedgerRow]:
    """The rows of a ledger, by release. Raise EvidenceError naming file and field, InputError where no folder is."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `perfgate ledger add` writes into it")
    rows = (read_json(path, LedgerRow, HINT) for path in sorted(folder.glob("*.json")))
    return sorted(rows, key=lambda one: (order_version(one.candidate), one.scenario, one.hardware))


def write_ledger(rows: Sequence[LedgerRow]) -> str:
    """The page: one row a release, then what each resolved differently."""
    head = HEAD.format(
        titles=" | ".join(METRICS[name].title for name in (*COLUMNS, *COSTS)), rules=":--|" * len((*COLUMNS, *COSTS))
    )
    lines = "\n".join(f"| {' | '.join(markdown(cell) for cell in _list_cells(row))} |" for row in rows)
    return head + (lines or "\nNo release was measured yet.") + "\n" + "".join(_list_sections(rows))


def _list_cells(row: LedgerRow) -> Iterator[str]:
    yield from (row.candidate, row.base, row.scenario, row.hardware, row.begun_utc[:10], row.outcome.value)
    for metric in COLUMNS:
        yield str(row.metrics.get(metric, wording.MISSING))
    for metric in COSTS:
        costs = row.costs.get(metric)
        yield " to ".join(wording.value(metric, costs.get(arm)) for arm in Arm) if costs else wording.MISSING
    yield str(len(row.settings))


def _list_sections(rows: Sequence[LedgerRow]) -> Iterator[str]:
    for row in rows:
        yield f"\n## {markdown(f'{row.base} to {row.candidate}, {row.scenario} on {row.hardware}')}\n\n"
        yield f"{row.blocks} blocks in {row.elapsed_s / 60:.0f} minutes, rule {markdown(row.rule)}. Its packed raw windows "
        yield f"take {row.size_bytes / 1e6:.2f} MB; their SHA-256 is `{row.sha256}`.\n"
        told = "".join(f"- {markdown(one)}\n" for one in (*row.reasons, *row.warnings))
        yield f"\n{told}" if told else ""
        yield "\n| setting | before | after |\n|:--|:--|:--|\n" if row.settings else "\nNo setting was resolved differently.\n"
        for change in row.settings:
            yield f"| {' | '.join(markdown(cell) for cell in change)} |\n"
