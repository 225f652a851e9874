"""What grows while a start serves gates as any other metric: a number a start, blocks of fresh starts, margins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.check import judge
from perfgate.cli.reading.designing import choose_all, format_design
from perfgate.core import Arm, Fingerprint, Outcome, Role
from perfgate.gate.baselines import build_baseline
from perfgate.scenario.schema import Blocks, Gate
from perfgate.verdict.baselines import format_baseline, parse_baseline
from perfgate.verdict.power import Cost, Study, draw_curves, find_all_cheapest
from perfgate.verdict.validity.pairing import measure_window_variance, read_values
from tests.fakes.sessions import FACTS, change_window, make_scenario, make_session, record

GROWTHS = ("throughput_growth", "server_memory_growth")
SCENARIO = make_scenario(
    blocks=Blocks(windows=6, looks=(4,)), gates={"output_tok_per_s": Gate(), **{name: Gate() for name in GROWTHS}}
)
QUIET = make_session(SCENARIO, blocks=4, noise=1e-5)
KEPT_MIB = 1.0


def change(window, **values):
    return replace(window, run=replace(window.run, values={**window.run.values, **values}))


def keep(session, base_mib=KEPT_MIB, candidate_mib=KEPT_MIB):
    """Servers that hold 2,000 MiB at first, and keep so much more of each window."""
    kept = {Arm.BASE: base_mib, Arm.CANDIDATE: candidate_mib}
    return replace(
        session, windows=tuple(change(one, server_memory_mib=2000.0 + kept[one.arm] * one.index) for one in session.windows)
    )


def find(verdict, metric):
    return next(one for one in verdict.judgements if one.metric == metric)


@pytest.mark.parametrize(
    ("base_mib", "candidate_mib", "outcome"), [(1.0, 1.0, "PASS"), (1.0, 40.0, "REGRESSION"), (40.0, 1.0, "IMPROVED")]
)
def test_judge__memory_that_requests_leave_behind(base_mib, candidate_mib, outcome):
    verdict = judge(keep(QUIET, base_mib, candidate_mib), SCENARIO, None)
    found = find(verdict, "server_memory_growth")

    assert (verdict.outcome, found.outcome, found.gating) == (outcome, outcome, True)
    # A window is 400 requests, and windows 2 to 7 count.
    assert found.base == pytest.approx(1 + 25 * base_mib / (2000 + 4.5 * base_mib))
    assert found.change == pytest.approx(found.candidate / found.base - 1)


def test_judge__throughput_that_falls_from_window_to_window():
    falling = {one.name: 1 - 0.02 * one.index * (one.arm is Arm.CANDIDATE) for one in QUIET.windows}
    windows = tuple(
        change(one, output_tok_per_s=falling[one.name] * one.run.values["output_tok_per_s"]) for one in keep(QUIET).windows
    )

    verdict = judge(replace(QUIET, windows=windows), SCENARIO, None)

    assert find(verdict, "throughput_growth").outcome is Outcome.REGRESSION
    assert find(verdict, "throughput_growth").change < -0.1
    assert find(verdict, "server_memory_growth").outcome is Outcome.PASS


def test_judge__one_window_of_six_that_stands_apart_is_no_growth():
    session = keep(QUIET)
    for place, window in enumerate(session.windows):
        if window.arm is Arm.CANDIDATE and window.index == 7:
            session = change_window(session, place, values={**window.run.values, "server_memory_mib": 2600.0})

    assert find(judge(session, SCENARIO, None), "server_memory_growth").outcome is Outcome.PASS


def test_judge__without_the_number_that_grows_nothing_is_judged():
    verdict = judge(QUIET, SCENARIO, None)

    assert verdict.outcome is Outcome.INVALID
    assert "server_memory_growth, told by server_memory_mib, is missing although it gates" in verdict.reasons[0]


def test_judge__session_in_flight_is_judged_by_its_whole_blocks():
    session = keep(QUIET)
    verdict = judge(replace(session, windows=session.windows[:-3], is_complete=False), SCENARIO, None)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "undecided after 3 blocks" in verdict.reasons[0]
    assert find(verdict, "server_memory_growth").change == pytest.approx(0.0)


def test_judge__order_of_the_index_means_nothing():
    session = keep(QUIET, 1.0, 2.0)

    assert judge(replace(session, windows=session.windows[::-1]), SCENARIO, None) == judge(session, SCENARIO, None)


def test_read_values__discarded_windows_and_re_runs_aged_the_server():
    windows = [one for one in keep(QUIET, 10.0).windows if one.start == 1]
    line = read_values(windows[2:], "server_memory_growth")

    # The window at index 4 stalled, and one at index 8 stands in its place.
    again = change(replace(windows[4], index=8, role=Role.RERUN), server_memory_mib=2080.0)
    settled = read_values([*windows[2:4], again, *windows[5:]], "server_memory_growth")

    assert line == pytest.approx((1 + 25 * 10 / 2045,))
    assert settled == pytest.approx((1 + 25 * 10 / 2055,))


def test_judge__a_number_of_the_start_has_no_scatter_of_windows():
    windows = [one for one in keep(QUIET).windows if one.start == 1 and one.role is Role.MEASURED]

    assert measure_window_variance(windows, "server_memory_growth") is None


def test_build_baseline__keeps_one_growth_a_start():
    past = [record(keep(make_session(SCENARIO, blocks=2, seed=seed, is_aa=True)), seed) for seed in range(1, 4)]
    made = build_baseline(SCENARIO, Fingerprint(facts=FACTS), past)
    read = parse_baseline(format_baseline(made), "unit.json")

    assert {len(values) for values in read.metrics["server_memory_growth"].values} == {1}
    assert {len(values) for values in read.metrics["output_tok_per_s"].values} == {6}
    assert judge(keep(QUIET), SCENARIO, read).outcome is Outcome.PASS
    assert judge(keep(QUIET, 1.0, 40.0), SCENARIO, read).outcome is Outcome.REGRESSION


def test_find_all_cheapest__sizes_no_other_design_for_a_slope():
    past = [record(keep(make_session(SCENARIO, blocks=2, seed=seed, is_aa=True)), seed) for seed in range(1, 4)]
    made = build_baseline(SCENARIO, Fingerprint(facts=FACTS), past)
    study = Study(baseline=made, scenario=SCENARIO, cost=Cost(start_s=30.0, window_s=10.0, warmups=2))

    assert {curve.metric for curve in draw_curves(study)} == set(SCENARIO.gates)
    assert [found.metrics for found in find_all_cheapest(study, 0.1)] == [("output_tok_per_s",)]
    told = format_design(study, choose_all(study, 0.1), 0.1, (), lambda table: " ".join(table.header))
    assert "Growth of server memory: what a slope scatters by with other windows is not known from these" in told


def test_read_scenario__a_growth_needs_windows():
    with pytest.raises(ValueError, match=r"gates\.throughput_growth: needs 5 windows per start, and blocks\.windows is 3"):
        make_scenario(gates={"throughput_growth": Gate()})
