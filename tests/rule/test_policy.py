"""What is fixed before anybody looks: which metrics gate, what stored noise weighs, and how far a lone candidate is judged."""

from __future__ import annotations

from dataclasses import replace
from math import log
from statistics import median, variance

import pytest

from perfgate.core import Arm, Fingerprint
from perfgate.scenario.schema import Blocks, Gate, Warmup
from perfgate.stats.moderated import Prior
from perfgate.verdict.noise import Response
from perfgate.verdict.policy import StoredBlocks, build_prior, can_judge_alone, explain_not_gating, find_prior, fix_policy
from perfgate.verdict.series import read_blocks, read_series
from tests.fakes.sessions import FACTS, make_baseline, make_scenario, make_session

SCENARIO = make_scenario()
BASELINE = make_baseline(SCENARIO)
ALONE = make_session(SCENARIO, blocks=1, arms=(Arm.CANDIDATE,))
NOISE = BASELINE.metrics["median_itl_ms"]


def test_prior__of_blocks_weighs_nine_degrees_of_freedom_at_most():
    prior = fix_policy(make_session(SCENARIO), SCENARIO, BASELINE).prior("median_itl_ms")

    assert (prior.variance, prior.df) == (NOISE.block_variance, 9)
    assert fix_policy(make_session(SCENARIO), SCENARIO, make_baseline(SCENARIO, sessions=3)).prior("median_itl_ms").df == 6


def test_find_prior__stored_and_usual_offsets_are_weighed_by_sessions():
    prior = find_prior(NOISE, 9)

    assert prior.offset_variance == pytest.approx((4 * 0.005**2 + 12 * NOISE.offset_variance) / 16)
    assert prior.offset_df == 12


def test_find_prior__of_another_host_is_wider_and_says_nothing_of_offsets():
    prior = find_prior(NOISE, 4, is_same_host=False)

    assert prior == Prior(variance=4 * NOISE.block_variance, df=4, offset_variance=pytest.approx(0.005**2), offset_df=4)


def test_find_prior__without_stored_noise_is_the_usual_offset_alone():
    assert find_prior(None, 9) == Prior(offset_variance=pytest.approx(0.005**2), offset_df=4)


@pytest.mark.parametrize(("blocks", "sessions", "df"), [(10, 1, 2), (20, 2, 4), (20, 5, 9), (3, 3, 3)])
def test_build_prior__one_day_tells_little_of_the_next(blocks, sessions, df):
    stored = StoredBlocks(blocks=blocks, sessions=sessions, variance=1e-4, offset_variance=0.0)

    assert build_prior(stored, 9).df == df


def test_prior__of_a_lone_start_is_a_new_session_on_one_degree_less_than_sessions():
    assert fix_policy(ALONE, SCENARIO, BASELINE).prior("median_itl_ms") == Prior(variance=NOISE.predicted_variance, df=11)


def test_prior__of_a_metric_without_stored_noise_knows_nothing():
    assert fix_policy(ALONE, SCENARIO, None).prior("median_itl_ms") == Prior()


@pytest.mark.parametrize("arm", list(Arm))
def test_fix_policy__a_base_by_its_fingerprint_or_its_windows_makes_a_comparison(arm):
    session = make_session(SCENARIO, blocks=1)
    windows = tuple(window for window in session.windows if window.arm is arm)
    named = {one: found for one, found in session.fingerprints.items() if one is not arm}

    policy = fix_policy(replace(session, windows=windows, fingerprints=named), SCENARIO, BASELINE)

    assert (policy.design, policy.plan.looks) == (2, (2, 3, 4, 6))


def test_fix_policy__the_past_is_held_against_the_base_not_the_change():
    newer = {Arm.BASE: Fingerprint(facts=FACTS), Arm.CANDIDATE: Fingerprint(facts={**FACTS, "sglang": "0.6"})}

    policy = fix_policy(make_session(SCENARIO, fingerprints=newer), SCENARIO, BASELINE)

    assert (policy.is_same_environment, policy.max_prior_df) == (True, 9)


def test_fix_policy__without_a_baseline_says_so():
    assert fix_policy(ALONE, SCENARIO, None).warnings == (
        "no baseline for this hardware and scenario: judged by this session's own noise alone",
    )


@pytest.mark.parametrize(("requests", "is_silent"), [(299, True), (300, False)])
def test_explain_not_gating__p99_gates_from_300_requests_up(requests, is_silent):
    blocks = replace(SCENARIO.blocks, windows=1)
    scenario = make_scenario(load=replace(SCENARIO.load, num_prompts=requests), blocks=blocks)
    in_three = replace(scenario, load=replace(scenario.load, num_prompts=requests // 3), blocks=replace(blocks, windows=3))

    for one in (scenario, in_three):
        assert (explain_not_gating("p99_itl_ms", one, None) is not None) is is_silent


NO_ANSWER = (Response(injected_ratio=0.1, measured_ratio=0.02, low=0.01, high=0.03),)


@pytest.mark.parametrize(
    ("gates", "noise", "reason"),
    [
        ({"median_itl_ms": Gate()}, None, "the scenario does not gate it"),
        ({"output_tok_per_s": Gate(advisory=True)}, None, "the scenario asks for that (advisory = true)"),
        (
            {"output_tok_per_s": Gate()},
            replace(NOISE, sensitivity=NO_ANSWER),
            "calibration saw no fitting response to an injected slow-down",
        ),
    ],
)
def test_explain_not_gating__says_why_a_metric_is_shown_only(gates, noise, reason):
    found = explain_not_gating("output_tok_per_s", make_scenario(gates=gates), noise)

    assert found == f"Output throughput is shown only: {reason}"


def test_explain_not_gating__a_metric_that_never_gates():
    found = explain_not_gating("max_itl_ms", make_scenario(gates={"max_itl_ms": Gate()}), None)

    assert found == "Max ITL is shown only: it never gates"


@pytest.mark.parametrize(("sessions", "can"), [(9, False), (10, True)])
def test_can_judge_alone__from_ten_stored_sessions(sessions, can):
    assert can_judge_alone(fix_policy(ALONE, SCENARIO, make_baseline(SCENARIO, sessions=sessions))) is can


def test_read_series__a_metric_without_a_past_is_inflated_by_nothing():
    metrics = {name: noise for name, noise in BASELINE.metrics.items() if name != "median_itl_ms"}
    session = make_session(SCENARIO, noise=0.02)
    policy = fix_policy(session, SCENARIO, replace(BASELINE, metrics=metrics))

    phis = {reading.metric: reading.series.phi for reading in read_series(session, policy)}

    assert phis["median_itl_ms"] == ()
    assert min(phis["output_tok_per_s"]) > 1


def test_read_series__two_windows_a_start_scatter_too():
    scenario = make_scenario(blocks=Blocks(windows=2), warmup=Warmup(steady_ratio=0.25))
    session = make_session(scenario, noise=0.03)
    policy = fix_policy(session, scenario, make_baseline(scenario))

    assert max(read_series(session, policy)[0].series.phi) > 1


def test_noise__two_sessions_are_the_least_for_a_band_of_sessions():
    one, two = (make_baseline(SCENARIO, sessions=count).metrics["median_itl_ms"] for count in (1, 2))

    assert one.session_band is None
    assert two.session_band > two.band > 0


def test_read_series__tells_what_windows_alone_would_make_of_a_difference():
    session = make_session(SCENARIO, blocks=2)
    (reading, *_) = read_series(session, policy := fix_policy(session, SCENARIO, None))
    starts = [windows for block in read_blocks(session, policy) for windows in (block.base, block.candidate)]
    spreads = [variance([log(window.run.values[reading.metric]) for window in windows]) for windows in starts]

    assert reading.series.usual[1] == pytest.approx(2 * median(spreads) / SCENARIO.blocks.windows)
