"""The ledger of releases: each one against the one before it, as sessions that can be judged again, and as one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perfgate.core import Arm, Judgement, Verdict, Window
from perfgate.engines.insides import order_version
from perfgate.engines.sglang_releases import ENGINE
from perfgate.gate.case import load_case
from perfgate.gate.gate import GateJob, name_calibration, run_gate
from perfgate.metrics import METRICS
from perfgate.releases.registry import find_previous, list_versions
from perfgate.releases.suite import SCENARIO
from perfgate.report.escape import markdown
from perfgate.report.words import wording
from perfgate.results.footprint import read_starts
from perfgate.results.recent import list_results
from perfgate.results.records import EVENTS_FILE
from perfgate.results.server_info import compare_infos, load_infos
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.engine_install import install_release
from perfgate.serving.progress import Progress
from perfgate.storage.journal import read_lines

COLUMNS = ("output_tok_per_s", "median_itl_ms", "p99_itl_ms")
"""The metrics of the table that are judged: what a user feels."""

COSTS = ("ready_s", "server_memory_mib")
"""What a start costs, as medians: servers that load side by side share the machine, so the time to ready is not judged."""

HEAD = """# Releases of SGLang, each against the one before it

Made by `perfgate ledger show`. A row is a session of `perfgate gate`, judged anew from its raw windows. On a CPU it tells of
plumbing and of large relative changes, and nothing of a GPU.

| release | against | scenario | hardware | begun | verdict | {titles} | settings |
|:--|:--|:--|:--|:--|:--|{rules}--:|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseStep:
    """One release against the one before it. `settings` are those that resolved differently: name, base, candidate.

    `costs` are medians by the names in COSTS and by arm.
    """

    base: str
    candidate: str
    begun_utc: str
    folder: Path
    verdict: Verdict
    settings: tuple[tuple[str, str, str], ...]
    costs: Mapping[str, Mapping[Arm, float]]

    def find(self, metric: str) -> Judgement | None:
        """What was found of a metric; None where it was not measured."""
        return next((one for one in self.verdict.judgements if one.metric == metric), None)


def add_release(version: str, environments: Path, folder: Path, progress: Progress, torch_index: str | None = None) -> Path:
    """Measure a release against the one before it into a folder below `folder`; return that folder.

    Both are installed below `environments`, where they are not there yet. One that was cut off is gone on with. Raise
    InputError for a release that no registry has, EvidenceError for one that was measured already.
    """
    previous = find_previous(list_versions(ENGINE), version)
    text, source = read_scenario_text(SCENARIO)
    target = folder / f"{ENGINE}-{previous}-{version}"
    is_begun = target.exists() or name_calibration(target).exists()
    pythons = {}
    for arm, release in ((Arm.BASE, previous), (Arm.CANDIDATE, version)):
        progress.step(f"{arm.value}: {ENGINE} {release}")
        pythons[arm] = install_release(release, environments / release, torch_index)
    arms = {arm: ArmSpec(python=str(python)) for arm, python in pythons.items()}
    folder.mkdir(parents=True, exist_ok=True)
    job = GateJob(scenario=parse_scenario(text, source), text=text, arms=arms, folder=target, resume=is_begun)
    run_gate(job, progress)
    return target


def list_steps(folder: Path) -> list[ReleaseStep]:
    """The ledger's sessions below `folder`, by release. Raise EvidenceError for a folder that is broken."""
    found = [
        _read_step(one.path, one.record.begun_utc)
        for one in list_results(folder)
        if one.is_ended and one.record.purpose == "ab"
    ]
    return sorted(found, key=lambda one: (order_version(one.candidate), one.verdict.scenario, one.begun_utc))


def _read_step(folder: Path, begun_utc: str) -> ReleaseStep:
    case = load_case(folder)
    versions = {arm: found.facts.get(ENGINE, "absent") for arm, found in case.session.fingerprints.items()}
    return ReleaseStep(
        base=versions.get(Arm.BASE, "absent"),
        candidate=versions.get(Arm.CANDIDATE, "absent"),
        begun_utc=begun_utc,
        folder=folder,
        verdict=case.verdict,
        settings=tuple(compare_infos(load_infos(folder))),
        costs=_measure_costs(folder, case.session.windows),
    )


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


def write_ledger(steps: Sequence[ReleaseStep]) -> str:
    """The page: one row a release, then what each resolved differently."""
    head = HEAD.format(
        titles=" | ".join(METRICS[name].title for name in (*COLUMNS, *COSTS)), rules=":--|" * len((*COLUMNS, *COSTS))
    )
    rows = "\n".join(f"| {' | '.join(markdown(cell) for cell in _list_cells(step))} |" for step in steps)
    return head + (rows or "\nNo release was measured yet.") + "\n" + "".join(_list_sections(steps))


def _list_cells(step: ReleaseStep) -> Iterator[str]:
    verdict = step.verdict
    yield from (step.candidate, step.base, verdict.scenario, verdict.hardware, step.begun_utc[:10], verdict.outcome.value)
    for metric in COLUMNS:
        found = step.find(metric)
        yield "-" if found is None or found.change is None else f"{wording.percent(found.change)} {wording.interval(found)}"
    for metric in COSTS:
        costs = step.costs[metric]
        yield " to ".join(wording.value(metric, costs.get(arm)) for arm in Arm) if costs else "-"
    yield str(len(step.settings))


def _list_sections(steps: Sequence[ReleaseStep]) -> Iterator[str]:
    for step in steps:
        yield f"\n## {step.base} to {step.candidate}\n\n`perfgate check {step.folder}` judges it again.\n"
        for reason in step.verdict.reasons:
            yield f"\n- {markdown(reason)}"
        yield "\n| setting | before | after |\n|:--|:--|:--|\n" if step.settings else "\nNo setting was resolved differently.\n"
        for change in step.settings:
            yield f"| {' | '.join(markdown(cell) for cell in change)} |\n"
