"""The words and figures of a verdict: what is judged, what is left open, and what is told of machine and margin."""

from __future__ import annotations

from dataclasses import replace
from math import expm1

import pytest

from perfgate.check import judge
from perfgate.core import Arm, Fingerprint, Outcome
from perfgate.evidence import DriverProblem
from perfgate.scenario.schema import Gate, Warmup
from perfgate.stats.moderated import find_quantile
from perfgate.verdict.policy import USUAL_OFFSET_LOG, fix_policy
from perfgate.verdict.series import read_series
from tests.fakes.sessions import FACTS, change_window, make_baseline, make_scenario, make_session

SCENARIO = make_scenario()
BASELINE = make_baseline(SCENARIO)
NOISY = make_scenario(warmup=Warmup(steady_ratio=9.0))
METRICS = ("output_tok_per_s", "p99_itl_ms", "median_itl_ms")
SLOW = {"output_tok_per_s": 0.06}


def _alone(scenario=SCENARIO, **changes):
    return make_session(scenario, blocks=1, arms=(Arm.CANDIDATE,), **changes)


def _find(verdict, metric):
    return next(judgement for judgement in verdict.judgements if judgement.metric == metric)


def _judge(**changes):
    return judge(make_session(SCENARIO, **changes), SCENARIO, BASELINE)


def test_judge__void_evidence_still_shows_every_metric_with_margin_and_band():
    scenario = make_scenario(gates={"median_itl_ms": Gate(margin=0.05)})

    died = DriverProblem(message="the server died; read its log")
    verdict = judge(make_session(scenario, problems=(died,)), scenario, BASELINE)

    assert [(one.metric, one.gating, one.outcome, one.margin_ratio) for one in verdict.judgements] == [
        ("output_tok_per_s", False, Outcome.INVALID, 0.03),
        ("p99_itl_ms", False, Outcome.INVALID, 0.10),
        ("median_itl_ms", True, Outcome.INVALID, 0.05),
    ]
    assert [one.band for one in verdict.judgements] == [BASELINE.metrics[name].band for name in METRICS]
    assert verdict.judgements[0].notes == ("Output throughput is shown only: the scenario does not gate it",)


def test_judge__before_the_first_window_everything_is_open():
    empty = replace(make_session(SCENARIO), windows=(), is_complete=False)

    verdict = judge(empty, SCENARIO, BASELINE)

    assert verdict.reasons == (
        "undecided after 0 blocks: Output throughput, P99 ITL, Median ITL; 2 blocks more to the next look",
    )
    assert {judgement.outcome for judgement in verdict.judgements} == {Outcome.INCONCLUSIVE}
    assert "the session was cut off or is still running: whole blocks are judged" in verdict.warnings


def test_judge__only_what_is_open_is_called_open():
    verdict = _judge(worse={"median_itl_ms": 0.0178})

    assert verdict.reasons == ("undecided after 2 blocks: Median ITL; 1 block more to the next look",)


def test_judge__a_pass_says_with_what_confidence_it_excludes_a_loss():
    assert _judge().reasons == (
        "3 gating metrics after 2 blocks: each excludes a loss of its margin, with 95 % confidence over all 4 looks",
    )


def test_judge__a_gain_names_the_metrics_that_gained():
    reasons = _judge(worse={"output_tok_per_s": -0.05, "median_itl_ms": -0.05}).reasons

    assert reasons[1:] == ("beyond half a margin better: Output throughput, Median ITL",)


def test_judge__a_regression_names_the_metrics_that_lost_and_no_other():
    verdict = _judge(worse=SLOW)

    judgement = _find(verdict, "output_tok_per_s")
    # Throughput: what the candidate lost of the base's, not what the base has more.
    loss = -100 * expm1(-judgement.worse)
    line = 100 * (1 - 1 / (1 + judgement.fails_from))
    reason, *others = verdict.reasons
    assert reason == (
        f"Output throughput is worse by {loss:.1f} %: it fails from {line:.1f} %, where a loss is surely above zero and more "
        "than half its margin"
    )
    assert others == []
    assert [one.outcome for one in verdict.judgements] == [Outcome.REGRESSION, Outcome.PASS, Outcome.PASS]


def test_judge__without_any_noise_a_metric_fails_from_what_an_offset_of_the_session_explains():
    session = make_session(SCENARIO, noise=0.0, worse=0.1)
    windows = tuple(
        replace(one, run=replace(one.run, duration_s=one.run.duration_s + 0.001 * number))
        for number, one in enumerate(session.windows)
    )

    judgements = judge(replace(session, windows=windows), SCENARIO, None).judgements
    # The usual offset is known as from four sessions; Holm's levels lie between alpha / 4 looks / 3 metrics and alpha / 4.
    low, high = (expm1(find_quantile(1 - level, 4) * USUAL_OFFSET_LOG) for level in (0.01 / 4, 0.01 / 4 / 3))
    for one in judgements:
        floor = (1 + one.margin_ratio) ** 0.5 - 1
        assert max(low, floor) - 1e-9 <= one.fails_from <= max(high, floor) + 1e-9


def test_judge__change_interval_and_probability_are_those_of_the_estimate():
    session = make_session(SCENARIO, worse=0.05)
    verdict = judge(session, SCENARIO, BASELINE)
    readings = read_series(session, fix_policy(session, SCENARIO, BASELINE))

    for reading, sign in zip(readings, (-1, 1, 1), strict=True):
        found, judgement = reading.series.estimate(2), _find(verdict, reading.metric)
        ends = sorted(expm1(sign * (found.mean + side * found.reach(0.95))) for side in (-1, 1))
        assert (judgement.low, judgement.high) == (pytest.approx(ends[0]), pytest.approx(ends[1]))
        assert judgement.change == pytest.approx(judgement.candidate / judgement.base - 1)
        assert (judgement.p_value, judgement.worse) == (found.p_worse, found.mean)


def test_judge__one_block_without_a_past_has_neither_interval_nor_probability():
    judgement = judge(make_session(SCENARIO, blocks=1), SCENARIO, None).judgements[0]

    assert (judgement.low, judgement.high, judgement.p_value, judgement.smallest_effect) == (None, None, None, None)


def test_judge__latency_that_is_open_is_sized_as_time():
    verdict = judge(make_session(NOISY, blocks=6, worse=0.02, noise=0.03), NOISY, None)

    judgement = _find(verdict, "median_itl_ms")
    size = 100 * judgement.smallest_effect
    assert judgement.notes == (f"Median ITL: this much evidence reliably finds no loss below {size:.1f} % (9 times in 10)",)


def test_judge__scatter_within_twice_the_usual_spread_is_not_worth_a_word():
    """phi counts beyond USUAL_RATIO of the variance, the note begins at NOISY_RATIO of the deviation."""
    session = make_session(SCENARIO, noise=0.0065)

    phi = read_series(session, fix_policy(session, SCENARIO, BASELINE))[0].series.phi[1]

    assert 1 < phi < 2
    assert _find(judge(session, SCENARIO, BASELINE), "output_tok_per_s").notes == ()


def test_judge__a_lone_candidate_is_shown_with_the_band_of_sessions():
    bands = [judgement.band for judgement in judge(_alone(worse=-0.01), SCENARIO, BASELINE).judgements]

    assert bands == [BASELINE.metrics[name].session_band for name in METRICS]


def test_judge__a_lone_candidate_is_never_failed_and_what_passes_still_does():
    verdict = judge(_alone(worse={**SLOW, "output_tok_per_s": 0.2, "median_itl_ms": -0.02}), SCENARIO, BASELINE)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert _find(verdict, "output_tok_per_s").outcome is Outcome.INCONCLUSIVE
    assert _find(verdict, "median_itl_ms").outcome is Outcome.PASS
    assert verdict.reasons == ("the candidate alone is not clearly within the stored band: measure A/B blocks",)


def test_judge__a_lone_candidate_that_nothing_can_be_compared_with_fails_by_name():
    verdict = judge(_alone(worse=0.2, has_base=False), SCENARIO, BASELINE)

    assert {judgement.outcome for judgement in verdict.judgements} == {Outcome.REGRESSION}
    assert len(verdict.reasons) == 3


def test_judge__a_loss_that_may_not_gate_is_shown_while_the_rest_is_open():
    scenario = make_scenario(gates={"median_itl_ms": Gate(), "output_tok_per_s": Gate(advisory=True)})

    session = make_session(scenario, worse={"output_tok_per_s": 0.2, "median_itl_ms": 0.05})
    for position, window in enumerate(session.windows):
        if window.block == 2 and window.arm is Arm.CANDIDATE:
            values = {**window.run.values, "median_itl_ms": 10.0 * (0.99 + 0.0001 * position)}
            session = change_window(session, position, values=values)

    verdict = judge(session, scenario, BASELINE)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert _find(verdict, "output_tok_per_s").outcome is Outcome.REGRESSION


@pytest.mark.parametrize(
    ("fingerprints", "hardware"),
    [
        ({Arm.BASE: "here", Arm.CANDIDATE: "there"}, "there"),
        ({Arm.BASE: "here"}, "here"),
        ({Arm.BASE: "here", Arm.CANDIDATE: None}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_judge__says_which_hardware(fingerprints, hardware):
    facts = {
        arm: Fingerprint(facts={key: value for key, value in {**FACTS, "hardware": name}.items() if value is not None})
        for arm, name in fingerprints.items()
    }

    verdict = judge(make_session(SCENARIO, fingerprints=facts), SCENARIO, None)

    assert (verdict.hardware, verdict.scenario) == (hardware, "unit")


def test_judge__twenty_stored_blocks_and_no_stall_need_no_warning():
    assert judge(make_session(SCENARIO), SCENARIO, make_baseline(SCENARIO, sessions=10)).warnings == ()
