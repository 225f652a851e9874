"""What is made of a judged result folder: a comment, `verdict.json` and `report.md`."""

from __future__ import annotations

from pathlib import Path

from perfgate.check import Case
from perfgate.core import Verdict
from perfgate.evidence import Session
from perfgate.gate.case import load_case
from perfgate.readers.layer_timings import find_timings, read_timings
from perfgate.report.render import ReportedCase, render_case
from perfgate.results.profiling.profiles import read_attribution
from perfgate.storage.journal import explain_stop, write_atomically
from perfgate.storage.rounding import VERDICT_FILE, format_verdict
from perfgate.verdict.layers import judge_layers, judge_times

LAYER_DIR = "layers"
"""Below a result folder: timings of MoE layers that were taken beside the session; its comment shows them, not the proof's."""


def build_report(folder: Path, case: Case, link: str = "") -> ReportedCase:
    """Add to a case what else its folder holds: profiles of both arms, and timings of layers."""
    return ReportedCase(
        session=case.session,
        scenario=case.scenario,
        baseline=case.baseline,
        verdict=case.verdict,
        attribution=read_attribution(folder),
        layers=_judge_layers(folder, case.session),
        link=link,
    )


def _judge_layers(folder: Path, session: Session) -> Verdict | None:
    """Judge the timings of layers below LAYER_DIR, else those of the session's proof; None where there are none."""
    timings = find_timings(folder / LAYER_DIR)
    if timings:
        return judge_layers(read_timings(timings))
    return judge_times(session.kernels, scenarios_in_pr=session.scenarios_in_pr)


def write_report(folder: Path) -> ReportedCase:
    """Judge a finished folder by the noise that it keeps, and write `verdict.json` and the comment.

    Raise EvidenceError where they cannot be written.
    """
    report = build_report(folder, load_case(folder, is_fixed=True))
    try:
        write_atomically(folder / "report.md", render_case(report).encode())
        # The verdict is last: a folder that has it is complete.
        write_atomically(folder / VERDICT_FILE, format_verdict(report.verdict))
    except OSError as error:
        raise explain_stop(folder, error) from error
    return report
