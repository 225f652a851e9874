"""The whole gate as a list of steps: know this machine's noise, measure, judge, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perfgate.core import Arm, Verdict
from perfgate.gate.baselines import find_baseline, find_path, save_baseline
from perfgate.gate.calibrate import Calibration, calibrate
from perfgate.gate.case import fix_noise, is_decided, load_case
from perfgate.gate.fresh_profiles import is_profile_due, profile_arms
from perfgate.gate.reports import write_report
from perfgate.machine.fingerprint import read_fingerprint
from perfgate.report.render import ReportedCase
from perfgate.results.folders import require_cut_off
from perfgate.results.records import SESSION_FILE, read_record
from perfgate.scenario.safeguards import Expect
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import Request, measure
from perfgate.serving.progress import Progress
from perfgate.storage.journal import explain_stop
from perfgate.storage.rounding import VERDICT_FILE
from perfgate.storage.state import find_machine_baselines, list_baseline_dirs
from perfgate_moe.proof.values import KernelProof


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJob:
    """One run of the gate. `baselines` are the folders to look in; empty means the machine's own and the shipped ones.

    `resume` goes on with one that was cut off, its calibration included. `expect` is what must be seen of the candidate besides
    what the scenario says. `profile` is "always" to profile both arms in the servers of the first block, "auto" to do it in
    fresh ones after a REGRESSION, and "never". `scenarios_in_pr` share one error budget. `kernels` is what was found out of the
    arms' kernels before.
    """

    scenario: Scenario
    text: str
    arms: Mapping[Arm, ArmSpec]
    folder: Path
    baselines: tuple[Path, ...] = ()
    model: Path | None = None
    resume: bool = False
    expect: Expect = field(default_factory=Expect)
    profile: Literal["auto", "always", "never"] = "auto"
    scenarios_in_pr: int = 1
    kernels: KernelProof | None = None


def run_gate(job: GateJob, progress: Progress) -> ReportedCase:
    """Calibrate if the scenario wants it and nothing is stored, measure, judge, and write and return the report.

    Raise EvidenceError when the disk takes no more, at the verdict too: an unforeseen end has the exit code of a REGRESSION.
    """
    try:
        return _run_steps(job, progress)
    except OSError as error:
        raise explain_stop(job.folder, error) from error


def _run_steps(job: GateJob, progress: Progress) -> ReportedCase:
    if job.resume:
        require_unfinished(job)
    if not is_begun(job):
        ensure_baseline(job, progress)
    request = Request(
        scenario=job.scenario,
        scenario_text=job.text,
        arms=job.arms,
        folder=job.folder,
        purpose="ab",
        looks=job.scenario.blocks.looks,
        is_decided=is_decided,
        fix_noise=lambda folder: fix_noise(folder, job.baselines),
        model=job.model,
        resume=job.resume,
        expect=job.expect,
        is_profiled=job.profile == "always",
        scenarios_in_pr=job.scenarios_in_pr,
        kernels=job.kernels,
    )
    measure(request, progress)
    report = write_report(job.folder)
    if not is_profile_missing(job, report.verdict):
        return report
    progress.step("a regression: both arms are profiled in fresh servers, to see which kernels it consists of")
    return write_report(job.folder) if profile_arms(request, progress) else report


def is_begun(job: GateJob) -> bool:
    """Whether the comparison itself is resumed; its noise was fixed when it began."""
    return job.resume and (job.folder / SESSION_FILE).exists()


def require_unfinished(job: GateJob) -> None:
    """Raise EvidenceError when there is nothing to go on with: nothing was begun, or all is there, verdict and profile."""
    if name_calibration(job.folder).is_dir() and not is_begun(job):
        return
    read_record(job.folder)
    if (job.folder / VERDICT_FILE).exists() and not is_profile_missing(job, load_case(job.folder, is_fixed=True).verdict):
        require_cut_off(job.folder)


def is_profile_missing(job: GateJob, verdict: Verdict) -> bool:
    """Whether `verdict` asks for a profile of both arms that the folder does not hold."""
    return job.profile == "auto" and is_profile_due(job.folder, job.scenario.server.engine, verdict.outcome)


def name_calibration(folder: Path) -> Path:
    """Where a gate that writes to `folder` keeps the raw data of its calibration."""
    return folder.with_name(f"{folder.name}-calibration")


def ensure_baseline(job: GateJob, progress: Progress) -> None:
    """Calibrate this machine first where the scenario says that no stored file can know it."""
    if not job.scenario.blocks.calibrate_first:
        return
    base = job.arms[Arm.BASE]
    found = find_baseline(list_baseline_dirs(job.baselines), job.scenario, read_fingerprint(base.python))
    if found is not None and found.workload_hash == job.scenario.workload_hash:
        return
    progress.step("no noise bands for this machine yet: they are measured now, once, and kept outside the repository")
    calibration = Calibration(
        scenario=job.scenario,
        text=job.text,
        spec=base,
        folder=name_calibration(job.folder),
        blocks=job.scenario.blocks.calibration_blocks,
        injections=job.scenario.blocks.calibration_injections,
        model=job.model,
        resume=job.resume,
    )
    baseline = calibrate(calibration, progress)
    target = job.baselines[0] if job.baselines else find_machine_baselines()
    path = find_path(target, baseline.fingerprint, job.scenario.name)
    save_baseline(baseline, path)
    progress.step(f"noise bands stored in {path}")
