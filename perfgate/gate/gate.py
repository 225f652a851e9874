"""The whole gate as a list of steps: know this machine's noise, measure, judge, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perfgate.check import judge, needs_more
from perfgate.core import Arm, Outcome, Verdict
from perfgate.engines.table import ENGINES
from perfgate.evidence import Session
from perfgate.gate.baseline_files import find_baseline, find_path, save_baseline
from perfgate.gate.calibrate import Calibration, calibrate
from perfgate.gate.case import KEPT, is_usable, match_baseline
from perfgate.gate.fresh_profiles import profile_arms
from perfgate.machine.fingerprint import read_fingerprint
from perfgate.report.render import render_markdown, render_text
from perfgate.report.table import choose_layout
from perfgate.results.profiles import read_attribution
from perfgate.results.records import SESSION_FILE, read_record
from perfgate.results.results import load_results
from perfgate.results.resumption import require_cut_off
from perfgate.scenario.safeguards import Expect
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import Request, measure
from perfgate.serving.progress import Progress
from perfgate.storage.journal import explain_stop, write_atomically
from perfgate.storage.rounding import VERDICT_FILE, format_verdict
from perfgate.storage.state import find_machine_baselines, list_baseline_dirs
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.policy import fix_policy
from perfgate_moe.proof.values import KernelProof


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict and the text that a terminal shows."""

    verdict: Verdict
    text: str


def run_gate(job: Job, progress: Progress) -> Result:
    """Calibrate if the scenario wants it and nothing is stored, measure, judge and write the report.

    Raise EvidenceError when the disk takes no more, at the verdict too: an unforeseen end has the exit code of a REGRESSION.
    """
    try:
        return _run_steps(job, progress)
    except OSError as error:
        raise explain_stop(job.folder, error) from error


def _run_steps(job: Job, progress: Progress) -> Result:
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
    result = write_report(job.folder)
    if not is_profile_missing(job, result.verdict):
        return result
    progress.step("a regression: both arms are profiled in fresh servers, to see which kernels it consists of")
    return write_report(job.folder) if profile_arms(request, progress) else result


def is_begun(job: Job) -> bool:
    """Whether the comparison itself is to be gone on with; its noise was fixed when it began."""
    return job.resume and (job.folder / SESSION_FILE).exists()


def require_unfinished(job: Job) -> None:
    """Raise EvidenceError when there is nothing to go on with: nothing was begun, or all is there, verdict and profile."""
    if name_calibration(job.folder).is_dir() and not is_begun(job):
        return
    read_record(job.folder)
    if (job.folder / VERDICT_FILE).exists() and not is_profile_missing(job, judge(*load_case(job.folder))):
        require_cut_off(job.folder)


def is_profile_missing(job: Job, verdict: Verdict) -> bool:
    """Whether `verdict` asks for a profile of both arms that the folder does not hold."""
    is_wanted = job.profile == "auto" and ENGINES[job.scenario.server.engine].is_profiled
    return is_wanted and verdict.outcome is Outcome.REGRESSION and read_attribution(job.folder) is None


def name_calibration(folder: Path) -> Path:
    """Where a gate that writes to `folder` keeps the raw data of its calibration."""
    return folder.with_name(f"{folder.name}-calibration")


def ensure_baseline(job: Job, progress: Progress) -> None:
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


def fix_noise(folder: Path, baselines: tuple[Path, ...]) -> Mapping[str, float]:
    """Keep in a session's folder the stored noise that it will be judged by, and return the deviations of a window in it.

    From here on the copy decides, if there is one: a baseline that grows while the session runs, or while it rests, changes
    nothing, and what the session measures again is what the verdict finds stalled.
    """
    scenario, session = load_results(folder)
    elsewhere = () if session.windows or session.superseded else list_baseline_dirs(baselines)
    baseline = match_baseline((folder / KEPT, *elsewhere), scenario, session)
    if baseline is not None and is_usable(baseline, scenario, session):
        save_baseline(baseline, find_path(folder / KEPT, baseline.fingerprint, scenario.name))
    return fix_policy(session, scenario, baseline).limits.noise


def is_decided(folder: Path) -> bool:
    """Whether the session in `folder`, as far as it got, needs no further block."""
    return not needs_more(*load_case(folder))


def load_case(folder: Path) -> tuple[Session, Scenario, Baseline | None]:
    """What a judge needs to know of the session in `folder`: its windows, its scenario, and the noise that it keeps."""
    scenario, session = load_results(folder)
    return session, scenario, match_baseline((folder / KEPT,), scenario, session)


def write_report(folder: Path) -> Result:
    """Judge a finished folder by the noise that it keeps, and write `verdict.json` and the comment."""
    session, scenario, baseline = load_case(folder)
    verdict = judge(session, scenario, baseline)
    report = render_markdown(verdict, session, scenario, baseline, read_attribution(folder))
    write_atomically(folder / "report.md", report.encode())
    # The verdict is last: a folder that has it is complete.
    write_atomically(folder / VERDICT_FILE, format_verdict(verdict))
    return Result(verdict=verdict, text=render_text(verdict, session, scenario, baseline, choose_layout()))
