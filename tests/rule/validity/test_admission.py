"""Limits of what may be believed, each at its edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.check import judge
from perfgate.core import Arm, Outcome
from tests.fakes.sessions import change_window, make_scenario, make_session

SCENARIO = make_scenario()
SESSION = make_session(SCENARIO, blocks=2)
BASE, CANDIDATE = 2, 7


def _reasons(session):
    verdict = judge(session, SCENARIO, None)
    return verdict.reasons if verdict.outcome is Outcome.INVALID else ()


def _at_clocks(base, candidate):
    clocks = {Arm.BASE: base, Arm.CANDIDATE: candidate}
    return replace(SESSION, windows=tuple(replace(one, telemetry={"sm_clock_mhz": clocks[one.arm]}) for one in SESSION.windows))


@pytest.mark.parametrize(("candidate", "is_void"), [(970.0, False), (969.0, True)])
def test_admit__a_clock_below_97_percent_of_its_arm_mate(candidate, is_void):
    reasons = _reasons(_at_clocks(1000.0, candidate))

    assert bool(reasons) is is_void
    assert all(reason.startswith(f"block {number}: base ran at 1000 MHz") for number, reason in enumerate(reasons, start=1))


@pytest.mark.parametrize(("share", "is_void"), [(0.02, False), (0.021, True)])
def test_admit__throttling_beyond_a_fiftieth_of_a_window(share, is_void):
    assert bool(_reasons(change_window(SESSION, BASE, telemetry={"throttled_share": share}))) is is_void


def test_admit__one_foreign_process_is_one_too_many():
    reasons = _reasons(change_window(SESSION, BASE, telemetry={"foreign_processes": 1.0}))

    assert "other processes used the GPU" in reasons[0]


def test_admit__tokens_name_block_and_windows():
    reasons = _reasons(change_window(SESSION, CANDIDATE, output_tokens=1))

    assert any(reason.startswith("block 1, windows 2 and 2: base has 12800 output tokens, candidate 1") for reason in reasons)


def test_admit__the_first_judged_window_is_what_others_are_held_against():
    reasons = _reasons(change_window(SESSION, BASE, workload={"dataset": "random", "rate": "20"}))

    assert [reason for reason in reasons if "sent rate inf where the first window sent 20" in reason] == [reasons[0]]
    assert reasons[0].startswith("block 1, base, start 1, window 3")


def test_admit__a_fact_that_one_window_lacks_is_a_difference():
    reasons = _reasons(change_window(SESSION, CANDIDATE, workload={"dataset": "random"}))

    assert "sent rate None where the first window sent inf" in reasons[0]


def test_admit__other_work_and_other_estimators_are_both_named():
    session = change_window(SESSION, CANDIDATE, workload={"dataset": "other", "rate": "inf"}, estimators={"p99_itl_ms": "x"})

    reasons = "\n".join(_reasons(session))

    assert "sent dataset other" in reasons
    assert "p99_itl_ms was made in 2 ways" in reasons
