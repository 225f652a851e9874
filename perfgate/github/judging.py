"""Judge hand-offs on the trusted side: this side's scenarios and baselines, the untrusted side's numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate.core import Outcome
from perfgate.errors import HandoffError
from perfgate.gate.case import KEPT, load_case
from perfgate.github.comment.changes import NOT_RESOLVED, render_choices, render_packages, summarise_choices
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.handoff.choices import ChoicesEntry
from perfgate.github.handoff.handoff import Handoff
from perfgate.github.handoff.packages import PackagesEntry
from perfgate.github.handoff.packing import find_scenario, unpack_handoffs
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.github.outputs import MAX_SUMMARY_BYTES, format_annotation
from perfgate.github.runs.collecting import name_artifact
from perfgate.github.settings import JudgingOptions, MatrixJob
from perfgate.report.comment import render_comment
from perfgate.report.render import ReportedCase
from perfgate.results.profiling.profiles import read_attribution
from perfgate.verdict.layers import judge_times

NOTHING_TO_JUDGE = 3
"""The exit code of a job that left no hand-off that can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """What one job of the matrix came to: judged cases, or the `problem` that left nothing to judge.

    `choices` are the engine's, where its hand-off has them; where they are due and missing, `lacks_choices`. `packages` are
    those by which the arms differ.
    """

    job: MatrixJob
    cases: tuple[ReportedCase, ...] = ()
    problem: str = ""
    uncalibrated: str = "fail"
    choices: ChoicesEntry | None = None
    lacks_choices: bool = False
    packages: PackagesEntry | None = None

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """One for each case, and one for the engine's choices."""
        if self.problem or self.lacks_choices:
            return (NOTHING_TO_JUDGE,)
        told = () if self.choices is None else (self.choices.exit_code,)
        return (*(case.verdict.find_exit_code(self.uncalibrated) for case in self.cases), *told)

    @property
    def annotations(self) -> tuple[str, ...]:
        """Lines that GitHub shows on the run."""
        if self.problem:
            return (format_annotation("error", f"perfgate {self.job.hardware}", "nothing to judge"),)
        return (*annotate(self.cases), *self._annotate_choices())

    @property
    def summary(self) -> str:
        """The markdown of the run's summary page."""
        told = render_choices(self.choices) if self.choices else ""
        is_slower = any(case.verdict.outcome is Outcome.REGRESSION for case in self.cases)
        packages = render_packages(self.packages, is_slower=is_slower)
        return "\n\n".join(filter(None, (render_comment(self.cases, MAX_SUMMARY_BYTES // 2), told, packages)))

    def _annotate_choices(self) -> Iterator[str]:
        title = f"perfgate {self.job.hardware}: choices"
        if self.lacks_choices:
            yield format_annotation("error", title, NOT_RESOLVED)
        elif self.choices is not None:
            yield format_annotation("error" if self.choices.lost else "notice", title, summarise_choices(self.choices))

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
        choices = find_choices(handoffs, job.hardware)
        is_due = job.hardware in options.resolved
        return JobVerdict(
            job=job,
            cases=cases,
            uncalibrated=options.uncalibrated,
            choices=choices,
            lacks_choices=is_due and choices is None,
            packages=find_packages(handoffs),
        )
    except HandoffError as error:
        return JobVerdict(job=job, problem=str(error))


def find_choices(handoffs: Sequence[Handoff], hardware: str) -> ChoicesEntry | None:
    """What hand-offs of one machine say of the engine's choices on its GPU; all of a run were told the same."""
    told = (handoff.choices.pick(hardware) for handoff in handoffs if handoff.choices is not None)
    return next(told, None)


def find_packages(handoffs: Sequence[Handoff]) -> PackagesEntry | None:
    """The packages by which the arms differ: those of the hand-off whose search named the fewest, else of any."""
    told = [handoff.packages for handoff in handoffs if handoff.packages is not None]
    return min(told, key=lambda found: len(found.suspects) or len(found.differences) + 1, default=None)


def find_handoff(artifacts: Path, job: MatrixJob, subject: HandoffSubject) -> tuple[Path, HandoffSubject]:
    """The file that a measuring job handed over, and what it must say of itself; `artifacts` holds one folder an artifact.

    A later attempt runs the jobs again that failed and keeps the others, so the last attempt that left something counts.
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
    source = reproduction.name_folder(name)
    # The folder that a reader fetches keeps the noise that counts here.
    noise = f"{source}/{KEPT}" if source and case.baseline else ""
    return ReportedCase(
        session=replace(case.session, source=source, reproduce=reproduce, noise=noise),
        scenario=case.scenario,
        baseline=case.baseline,
        verdict=case.verdict,
        link=reproduction.address,
        link_title=reproduction.title,
        attribution=read_attribution(folder),
        layers=judge_times(case.session.kernels, scenarios_in_pr=case.session.scenarios_in_pr),
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
