"""Where the time of a session went."""

from dataclasses import replace

import pytest

from perfgate.core import Outcome, Role
from perfgate.evidence import Timing
from perfgate.report.view import build_view
from perfgate.results.results import measure_time
from tests.fakes.sessions import make_scenario, make_session
from tests.fakes.verdicts import make_verdict, throughput

SCENARIO = make_scenario()
# Two blocks of two starts; each has two windows of 20 s that warm it up and three that count.
SESSION = make_session(SCENARIO, blocks=2)


def event(name, at_s):
    return {"event": name, "at_s": at_s}


def test_measure_time__sums_windows_by_what_they_are_for():
    timing = measure_time([event("session_ended", 500.0)], SESSION.windows)

    assert timing == Timing(took_s=500.0, starting_s=0.0, warming_s=160.0, measuring_s=240.0)


def test_measure_time__a_rerun_is_measuring():
    windows = (*SESSION.windows[:-1], replace(SESSION.windows[-1], role=Role.RERUN))

    assert measure_time([], windows).measuring_s == pytest.approx(240.0)


@pytest.mark.parametrize(
    ("events", "starting_s"),
    [
        ([("server_started", 1.0), ("server_ready", 4.0), ("server_started", 10.0), ("server_ready", 12.0)], 5.0),
        ([("server_started", 1.0), ("server_started", 2.0), ("server_ready", 5.0), ("server_ready", 9.0)], 8.0),
        ([("server_started", 1.0), ("resumed", 3.0), ("server_started", 3.0), ("server_ready", 5.0)], 2.0),
        ([("server_started", 1.0)], 0.0),
        ([("server_ready", 1.0)], 0.0),
        ([("server_started", None), ("server_ready", "late")], 0.0),
    ],
)
def test_measure_time__servers_that_load_side_by_side_count_once(events, starting_s):
    assert measure_time([event(*one) for one in events], SESSION.windows).starting_s == pytest.approx(starting_s)


def test_measure_time__ends_with_the_last_thing_known():
    last_s = max(window.ended_s for window in SESSION.windows)

    assert measure_time([], SESSION.windows).took_s == last_s
    assert measure_time([event("problem", last_s + 5)], SESSION.windows).took_s == last_s + 5
    assert measure_time([], ()) is None


def view_of(session):
    return build_view(make_verdict(Outcome.PASS, [throughput(0.0)]), session, SCENARIO)


def test_build_view__says_where_the_time_went():
    timing = Timing(took_s=600.0, starting_s=180.0, warming_s=80.0, measuring_s=240.0)
    told = view_of(replace(SESSION, timing=timing)).spent
    broken = view_of(replace(SESSION, timing=timing, superseded=SESSION.windows[:3])).spent
    handed_over = view_of(replace(SESSION, timing=replace(timing, starting_s=0.0))).spent

    assert "40 % measuring, 13 % warming up, 30 % starting servers" in told
    assert "8 of 20 windows discarded" in told
    assert "10.0 GPU-minutes" in view_of(replace(SESSION, timing=timing)).evidence
    assert "3 more cut off by a break and measured anew" in broken
    assert "starting servers" not in handed_over


def test_build_view__without_a_clock_the_windows_are_summed():
    assert "6.7 GPU-minutes in windows" in view_of(SESSION).evidence
