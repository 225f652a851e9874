"""Judge hand-offs on the trusted side: this side's scenarios and baselines, the untrusted side's numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate.core import Outcome
from perfgate.errors import HandoffError
from perfgate.gate.case import load_case
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.handoff.handoff import Handoff, HandoffSubject
from perfgate.github.handoff.unpacking import find_scenario, unpack_handoffs
from perfgate.github.outputs import format_annotation
from perfgate.github.runs.collecting import name_artifact
from perfgate.github.settings import MatrixJob
from perfgate.report.render import ReportedCase
from perfgate.results.profiling.profiles import read_attribution

NOTHING_TO_JUDGE = 3
"""The exit code of a job that left no hand-off that can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingOptions:
    """What hand-offs are judged by. `scenarios_in_pr` share one error budget, and the sections of `machines` one comment.

    `uncalibrated` is the repository's setting: "fail" or "report".
    """

    scenarios: tuple[str, ...]
    baselines: tuple[Path, ...]
    scenarios_in_pr: int
    machines: int
    uncalibrated: str = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """What one job of the matrix came to: judged cases, or the `problem` that left nothing to judge."""

    job: MatrixJob
    cases: tuple[ReportedCase, ...] = ()
    problem: str = ""
    uncalibrated: str = "fail"

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """One for each case."""
        return (
            tuple(case.verdict.find_exit_code(self.uncalibrated) for case in self.cases)
            if not self.problem
            else (NOTHING_TO_JUDGE,)
        )

    @property
    def annotations(self) -> tuple[str, ...]:
        """Lines that GitHub shows on the run."""
        if self.problem:
            return (format_annotation("error", f"perfgate {self.job.hardware}", "nothing to judge"),)
        return tuple(annotate(self.cases))

    @property
    def facts(self) -> tuple[Mapping[str, Any], ...]:
        """The same for programs, one document a case."""
        if self.problem:
            return ({"hardware": self.job.hardware, "scenario": self.job.scenario, "problem": self.problem},)
        return tuple(
            {
                "hardware": self.job.hardware,
                "scenario": case.verdict.scenario,
                "outcome": case.verdict.outcome.value,
                "reasons": case.verdict.reasons,
            }
            for case in self.cases
        )


def judge_job(job: MatrixJob, artifacts: Path, reproduction: Reproduction, options: JudgingOptions) -> JobVerdict:
    """Judge what one job left in its folder of `artifacts`."""
    try:
        handoffs = open_artifact(*find_handoff(artifacts, job, reproduction.subject))
        cases = judge_handoffs(handoffs, reproduction, options)
        return JobVerdict(job=job, cases=cases, uncalibrated=options.uncalibrated)
    except HandoffError as error:
        return JobVerdict(job=job, problem=str(error))


def find_handoff(artifacts: Path, job: MatrixJob, subject: HandoffSubject) -> tuple[Path, HandoffSubject]:
    """The file that a measuring job handed over, and what it must say of itself; `artifacts` holds one folder an artifact.

    A later attempt runs the jobs again that failed and keeps the others, so the last attempt that left something speaks.
    """
    attempts = range(max(subject.run_attempt, 1), 0, -1)
    left = (attempt for attempt in attempts if (artifacts / name_artifact(job, attempt)).is_dir())
    attempt = next(left, subject.run_attempt)
    path = artifacts / name_artifact(job, attempt) / f"handoff-{job.scenario}.json"
    return path, replace(subject, run_attempt=attempt)


def judge_handoffs(
    handoffs: Sequence[Handoff], reproduction: Reproduction, options: JudgingOptions
) -> tuple[ReportedCase, ...]:
    """Compute each verdict from its windows. Raise HandoffError for a scenario that is not one of this side's."""
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        folders = unpack_handoffs(handoffs, options.scenarios, Path(folder), scenarios_in_pr=options.scenarios_in_pr)
        return tuple(_judge(path, reproduction, options) for path in folders)


def _judge(folder: Path, reproduction: Reproduction, options: JudgingOptions) -> ReportedCase:
    case = load_case(folder, options.baselines)
    name = case.scenario.name
    _, *words = case.session.reproduce
    reproduce = (find_scenario(options.scenarios, name), *words)
    return ReportedCase(
        session=replace(case.session, source=reproduction.name_folder(name), reproduce=reproduce),
        scenario=case.scenario,
        baseline=case.baseline,
        verdict=case.verdict,
        link=reproduction.address,
        link_title=reproduction.title,
        attribution=read_attribution(folder),
        trees=reproduction.trees if words else "",
        fetch=reproduction.fetch,
        span=reproduction.span,
    )


def annotate(cases: Sequence[ReportedCase]) -> Iterator[str]:
    """Say each verdict in a line that GitHub shows on the run."""
    levels = {Outcome.PASS: "notice", Outcome.IMPROVED: "notice", Outcome.REGRESSION: "error"}
    for case in cases:
        verdict = case.verdict
        message = "; ".join(verdict.reasons[:3]) or verdict.outcome.value
        title = f"perfgate {verdict.scenario}: {verdict.outcome.value}"
        yield format_annotation(levels.get(verdict.outcome, "warning"), title, message)
