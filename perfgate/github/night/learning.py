"""What the nightly workflow measured of the main branch, as sessions that a baseline may take in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import PerfgateError, SlowerError
from perfgate.gate.recorded_sessions import add_sessions
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.handoff.packing import unpack_handoffs
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.github.judging import find_handoff
from perfgate.github.outputs import format_annotation
from perfgate.github.settings import MatrixJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What became of one job's session: the `line` of the baseline that took it in, or the `problem` that kept it out.

    `slower` says which metric became worse than the baseline allows, where that is the problem.
    """

    job: MatrixJob
    line: str = ""
    problem: str = ""
    slower: str = ""

    @property
    def message(self) -> str:
        """A line for the log; a problem is a warning that GitHub shows on the run."""
        title = f"perfgate {self.job.hardware} {self.job.scenario}"
        return format_annotation("warning", title, self.problem) if self.problem else self.line

    @property
    def facts(self) -> Mapping[str, str]:
        """The same for programs."""
        facts = {"hardware": self.job.hardware, "scenario": self.job.scenario, "problem": self.problem, "slower": self.slower}
        return {name: value for name, value in facts.items() if value}


def learn_from(
    subjects: Iterable[tuple[MatrixJob, HandoffSubject]],
    artifacts: Path,
    scenarios: tuple[str, ...],
    target: Path,
) -> Iterator[Lesson]:
    """Open what each job handed over and add its session to the baselines below `target`.

    A job whose session is missing, of another run or slower than its baseline is left out, and its lesson says why.
    """
    for job, subject in subjects:
        try:
            yield Lesson(job=job, line=_learn(*find_handoff(artifacts, job, subject), scenarios, target))
        except SlowerError as error:
            yield Lesson(job=job, problem=str(error), slower=error.what)
        except PerfgateError as error:
            yield Lesson(job=job, problem=str(error))


def _learn(path: Path, subject: HandoffSubject, scenarios: tuple[str, ...], target: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        # A baseline names its sessions by their folders, and a session counts once.
        own = Path(folder) / f"run-{subject.run_id}-{subject.run_attempt}"
        (opened,) = unpack_handoffs(open_artifact(path, subject), scenarios, own)
        named = opened.rename(Path(folder) / f"{own.name}-{subject.hardware}")
        return str(add_sessions((named,), target, commit=subject.head_sha))
