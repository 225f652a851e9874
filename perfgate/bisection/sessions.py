"""Measure commits of an engine by sessions: fresh servers of GOOD and of the commit, as in `perfgate gate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from perfgate.bisection.repository import Commit
from perfgate.bisection.search import CommitReading
from perfgate.bisection.trial import CommitError, PlaceStore, Trial, TrialResult, VoidError
from perfgate.core import Arm, Better
from perfgate.errors import EngineError
from perfgate.gate.case import fix_noise, load_case
from perfgate.gate.gate import GateJob, ensure_baseline, name_calibration
from perfgate.metrics import METRICS
from perfgate.results.records import SESSION_FILE
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import Request, measure
from perfgate.serving.progress import Progress
from perfgate.verdict.series import read_series
from perfgate.verdict.validity.admission import admit


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBench:
    """Serves GOOD and a commit, each from its own environment. `spec` is what both arms have in common."""

    checkouts: PlaceStore
    scenario: Scenario
    text: str
    spec: ArmSpec
    baselines: tuple[Path, ...]
    model: Path | None
    progress: Progress

    def measure(self, trial: Trial) -> TrialResult:
        """Measure a session into the trial's folder, or go on with the one that was cut off there."""
        base, candidate = self._build_arm(trial.good), self._build_arm(trial.commit)
        self._know_noise(trial, base)
        request = Request(
            scenario=self.scenario,
            scenario_text=self.text,
            arms={Arm.BASE: base, Arm.CANDIDATE: candidate},
            folder=trial.folder,
            purpose="ab",
            looks=(trial.blocks,),
            is_decided=lambda _: False,
            fix_noise=lambda folder: fix_noise(folder, self.baselines),
            model=self.model,
            notes=(f"bisect: {trial.commit.sha} against {trial.good.sha}",),
            resume=(trial.folder / SESSION_FILE).exists(),
        )
        try:
            measure(request, self.progress)
        except EngineError as error:
            raise CommitError(str(error)) from None
        return read_result(trial.folder)

    def _build_arm(self, commit: Commit) -> ArmSpec:
        return replace(self.spec, python=str(self.checkouts.find_python(commit.sha).absolute()))

    def _know_noise(self, trial: Trial, base: ArmSpec) -> None:
        """Calibrate this machine first where the scenario says that no stored file can know it."""
        folder = trial.folder.parent
        job = GateJob(
            scenario=self.scenario,
            text=self.text,
            arms={Arm.BASE: base, Arm.CANDIDATE: base},
            folder=folder,
            baselines=self.baselines,
            model=self.model,
            resume=name_calibration(folder).is_dir(),
        )
        ensure_baseline(job, self.progress)


def read_result(folder: Path) -> TrialResult:
    """Read a session as plain differences. Raise VoidError with the first reason when it is no evidence."""
    case = load_case(folder, is_fixed=True)
    session, policy = case.session, case.policy
    problems = admit(session, policy.limits)
    if problems:
        raise VoidError(f"{folder}: {problems[0]}")
    metrics = {
        reading.metric: CommitReading(
            differences=reading.series.differences,
            margin_log=reading.series.margin_log,
            prior_variance=reading.series.prior.variance,
            prior_df=reading.series.prior.df,
            gating=reading.series.gating,
            higher=METRICS[reading.metric].better is Better.HIGHER,
        )
        for reading in read_series(session, policy)
    }
    if not metrics:
        raise VoidError(f"{folder}: no whole block was measured")
    return TrialResult(metrics=metrics, minutes=session.timing.took_s * session.gpus / 60 if session.timing else 0.0)
