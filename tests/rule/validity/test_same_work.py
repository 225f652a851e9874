"""A window in which a server compiled, captured, retracted or restarted is named, replaced by its re-run, and never judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.check import Case, judge
from perfgate.core import Outcome, Role
from perfgate.report.html.places import WindowUse, place_windows
from perfgate.report.words.explanation import explain_metric
from perfgate.results.readings import GRAPHS_CAPTURED, KERNELS_COMPILED, PROCESSES_RESTARTED, REQUESTS_RETRACTED
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks
from perfgate.verdict.validity.pairing import WindowRules, fix_rules, group_starts
from perfgate.verdict.validity.same_work import describe_other_work
from tests.fakes.sessions import change_window, make_scenario, make_session

SCENARIO = make_scenario()
SESSION = make_session(SCENARIO)
RULES = fix_rules(SCENARIO, {})
COMPILED = {KERNELS_COMPILED: 2.0}
# Positions of start 1 (base, block 1): two warm-up windows, then three that are measured.
FIRST, SECOND = 2, 3


def spoil(session, position, telemetry=COMPILED):
    """The window was slowed by half, and says by what."""
    values = {
        name: value * (0.5 if name.endswith("_s") else 2.0) for name, value in session.windows[position].run.values.items()
    }
    return change_window(session, position, telemetry=telemetry, values=values)


def add_rerun(session, position, index, telemetry=None):
    """Behind the start's last window stands one that is like the window at `position` of the undisturbed session."""
    like = SESSION.windows[position]
    last = max((one for one in session.windows if one.start == like.start), key=lambda one: one.ended_s)
    step = 0.1 * (index - 4)
    run = replace(like.run, source=f"rerun-{index}", duration_s=0.01 * index)
    place = {"index": index, "role": Role.RERUN, "begun_s": last.ended_s + step / 2, "ended_s": last.ended_s + step}
    rerun = replace(like, run=run, telemetry=telemetry or {}, **place)
    return replace(session, windows=(*session.windows, rerun))


def read_start(session, rules=RULES):
    return next(start for start in group_starts(session) if start.number == 1).settle(rules)


def explain(session, scenario=SCENARIO):
    verdict = judge(session, scenario, None)
    assert verdict.outcome is Outcome.INVALID
    return " | ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("telemetry", "told"),
    [
        ({}, ""),
        ({"power_w": 1.0, KERNELS_COMPILED: 0.0}, ""),
        ({KERNELS_COMPILED: 1.0}, "compiled 1 kernel"),
        ({REQUESTS_RETRACTED: 12.0, GRAPHS_CAPTURED: 1.0}, "captured 1 graph and retracted 12 requests"),
        ({PROCESSES_RESTARTED: 1.0}, "restarted 1 process"),
        ({PROCESSES_RESTARTED: 2.0, KERNELS_COMPILED: 1.0}, "compiled 1 kernel and restarted 2 processes"),
    ],
)
def test_describe_other_work__in_words(telemetry, told):
    assert describe_other_work(telemetry) == told


@pytest.mark.parametrize("reading", [KERNELS_COMPILED, GRAPHS_CAPTURED, REQUESTS_RETRACTED, PROCESSES_RESTARTED])
def test_judge__a_window_of_other_work_without_a_rerun(reading):
    reasons = explain(spoil(SESSION, FIRST, {reading: 2.0}))

    assert "block 1, base, start 1, window 2: the server " in reasons
    assert "and no re-run without that stands in its place; " in reasons


def test_judge__the_rerun_stands_in_its_place():
    session = add_rerun(spoil(SESSION, SECOND), SECOND, 5)
    verdict = judge(session, SCENARIO, None)
    judged = {window.run.source for block in read_blocks(session, fix_policy(session, SCENARIO, None)) for window in block.base}

    assert verdict.outcome is judge(SESSION, SCENARIO, None).outcome
    assert verdict.judgements == judge(SESSION, SCENARIO, None).judgements
    assert "block 1, base: a window compiled 2 kernels and was measured again" in verdict.warnings
    assert "rerun-5" in judged
    assert session.windows[SECOND].run.source not in judged


def test_judge__each_window_of_other_work_has_a_rerun_and_the_stalled_one_too():
    session = spoil(spoil(SESSION, FIRST), SECOND)
    stalled = add_rerun(session, FIRST, 5)
    slow = {name: value * (0.7 if name.endswith("_s") else 1.4) for name, value in SESSION.windows[SECOND].run.values.items()}
    again = add_rerun(stalled, SECOND, 6)
    again = change_window(again, len(again.windows) - 1, values=slow)
    whole = add_rerun(again, SECOND, 7)

    assert [flaw.description for flaw in read_start(whole).replaced] == ["compiled 2 kernels", "compiled 2 kernels", "stalled"]
    assert [window.index for window in read_start(whole).windows] == [5, 7, 4]
    assert read_start(whole).spare == ()
    assert judge(whole, SCENARIO, None).outcome is not Outcome.INVALID


def test_judge__a_rerun_of_other_work_is_replaced_too():
    session = add_rerun(spoil(SESSION, FIRST), FIRST, 5, COMPILED)

    assert "window 5: the server compiled 2 kernels, and no re-run" in explain(session)
    assert judge(add_rerun(session, FIRST, 6), SCENARIO, None).outcome is not Outcome.INVALID


def test_judge__one_rerun_more_than_the_rule_asked_for():
    session = add_rerun(add_rerun(spoil(SESSION, FIRST), FIRST, 5), FIRST, 6)

    assert "start 1: 2 re-runs; one is the rule, more would be choosing" in explain(session)


def test_judge__retraction_that_the_scenario_is_about():
    session = spoil(SESSION, FIRST, {REQUESTS_RETRACTED: 2.0})
    allowing = make_scenario(allow_retraction=True)

    assert allowing.workload_hash == SCENARIO.workload_hash
    assert read_start(session, fix_rules(allowing, {})).windows[0] is not None
    assert read_start(session, WindowRules(tolerance=9.0, allows_retraction=True)).wanted is None
    assert "allow_retraction = true" in explain(session)
    assert not any("retracted" in reason for reason in judge(session, allowing, None).reasons)


def test_judge__the_last_block_of_a_session_that_was_cut_off_may_lack_its_reruns():
    last = len(SESSION.windows) - 1
    session = spoil(replace(SESSION, is_complete=False), last)
    verdict = judge(session, SCENARIO, None)

    assert verdict.outcome is not Outcome.INVALID
    assert verdict.blocks == 1 or len(read_blocks(session, fix_policy(session, SCENARIO, None))) == 1
    assert "compiled 2 kernels" in explain(replace(session, is_complete=True))


def test_place_windows__says_what_became_of_it():
    session = add_rerun(spoil(SESSION, SECOND), SECOND, 5)
    verdict = judge(session, SCENARIO, None)
    case = Case(session=session, scenario=SCENARIO, baseline=None, verdict=verdict)
    uses = {one.window.run.source: one.use for one in place_windows(case)}

    assert uses[session.windows[SECOND].run.source] is WindowUse.OTHER_WORK
    assert uses["rerun-5"] is WindowUse.JUDGED
    assert explain_metric(verdict.judgements[0], verdict, session)[3].startswith("1 window stalled or held other work and had")
