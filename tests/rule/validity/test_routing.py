"""Expert use that was measured must be there: a folder without it is no evidence, and one from before it was measured is."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.check import judge
from perfgate.core import Arm, Outcome, Role
from perfgate.results.expert_use import INDEX_FILE
from perfgate.results.results import load_results
from perfgate.stats.expert_use import NOT_MEASURED, ExpertUse, Unknown
from perfgate.verdict.validity.routing import check_asked
from tests.fakes.sessions import make_scenario, make_session

ROUTED = Path(__file__).parents[3] / "benchmarks" / "h200" / "serving" / "routed" / "mxfp4-closed-c16-aa-1"
LOST = ": expert use was measured, and expert_use.jsonl does not tell it: the folder was changed after the run; measure again"
ASKED = ExpertUse(unknown=Unknown.ENGINE)


@pytest.mark.parametrize(
    ("uses", "lost"),
    [
        ({Arm.BASE: ASKED, Arm.CANDIDATE: ASKED}, []),
        ({Arm.BASE: ASKED, Arm.CANDIDATE: NOT_MEASURED}, ["candidate"]),
        ({Arm.CANDIDATE: ASKED}, ["base"]),
        ({}, ["base and candidate"]),
    ],
)
def test_check_asked__what_is_missing(uses, lost):
    windows = make_session(make_scenario()).windows

    assert list(check_asked(windows, uses)) == [f"{arms}{LOST}" for arms in lost]


def test_check_asked__arm_that_never_got_so_far():
    """It is asked after its warm-up, before any window that counts."""
    session = make_session(make_scenario())
    warm = [window for window in session.windows if window.arm is Arm.BASE or window.role is Role.WARMUP]

    assert list(check_asked(warm, {Arm.BASE: ASKED})) == []


def test_judge__session_that_measured_it_and_one_from_before():
    scenario = make_scenario()
    session = make_session(scenario)
    asked = judge(replace(session, checks=("expert_use",)), scenario, None)

    assert asked.reasons == (f"base and candidate{LOST}",)
    assert judge(session, scenario, None).outcome is not Outcome.INVALID


def test_load_results__recorded_choices_without_their_index(tmp_path):
    """Recorded before sessions said that it is measured: the choices themselves say so."""
    folder = shutil.copytree(ROUTED, tmp_path / "routed")
    scenario, whole = load_results(folder)
    (folder / INDEX_FILE).unlink()
    _, session = load_results(folder)

    assert judge(whole, scenario, None).outcome is not Outcome.INVALID
    assert judge(session, scenario, None).reasons == (f"base and candidate{LOST}",)
