"""Each rule that people use today, on numbers small enough to check by hand, and what an offset of a whole session takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.verdict.gate import PLAN
from benchmarks.verdict.guard import WAYS, count, list_designs
from benchmarks.verdict.offset import ALPHAS, STORED, list_tries, study
from benchmarks.verdict.rivals import RIVALS, Evidence, limit_at
from benchmarks.verdict.spot_check import compare_all

RULES = {rival.name: rival for rival in RIVALS}


def column(*values):
    return np.array(values, dtype=float).reshape(1, len(values), 1)


def evidence(*, base=(100.0,), candidate=(100.0,), history=(), higher=False):
    return Evidence(base=column(*base), candidate=column(*candidate), history=column(*history), higher=np.array([higher]))


def score(name, **given):
    return float(RULES[name].score(evidence(**given))[0, 0])


def alarms(name, **given):
    return bool(RULES[name].alarms(evidence(**given))[0])


def test_score_change__latency_rises_by_six_percent():
    assert score("fixed 5 %", base=(10.0, 30.0), candidate=(21.2, 21.2)) == pytest.approx(0.06)


def test_score_change__throughput_falls_by_six_percent():
    assert score("fixed 5 %", base=(100.0,), candidate=(94.0,), higher=True) == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("name", "candidate", "expected"),
    [("fixed 5 %", 104.9, False), ("fixed 5 %", 105.1, True), ("fixed 10 %", 109.9, False), ("fixed 10 %", 110.1, True)],
)
def test_alarms__either_side_of_the_fixed_threshold(name, candidate, expected):
    assert alarms(name, candidate=(candidate,)) is expected


def test_alarms__a_gain_is_no_regression():
    assert not alarms("fixed 5 %", candidate=(50.0,))
    assert not alarms("fixed 5 %", candidate=(200.0,), higher=True)


def test_score_sigmas__history_of_known_deviation():
    # 98, 100, 102: mean 100, sample standard deviation 2; a candidate of 107 sits 3.5 of them above.
    assert score("mean + 3 sd", history=(98.0, 100.0, 102.0), candidate=(107.0,)) == pytest.approx(3.5)
    assert score("mean + 3 sd", history=(98.0, 100.0, 102.0), candidate=(93.0,), higher=True) == pytest.approx(3.5)


def test_score_mads__one_wild_value_in_the_history():
    # Median 100; absolute deviations 1, 0, 1, 2, 900 have median 1; so 103 is 3 / 1.4826 away.
    given = (99.0, 100.0, 101.0, 98.0, 1000.0)

    assert score("median + 3 MAD", history=given, candidate=(103.0,)) == pytest.approx(3 / 1.4826)


def test_worst__nightly_rule_sees_only_the_last_ten_runs():
    history = (500.0, *[100.0] * 9, 110.0)

    worst = RULES["SGLang nightly 10 %"].worst(evidence(history=history, candidate=(111.1,)))

    assert worst == pytest.approx([0.1])


def test_score_best_level__latency_takes_the_low_end_of_the_rolling_means():
    # Days 9, 12, 15, 12, 9 roll to 12, 13, 12; their 5 % point is 12.0, so 13.2 lost 10 %.
    assert score("TensorRT-LLM 5 %", history=(9.0, 12.0, 15.0, 12.0, 9.0), candidate=(13.2,)) == pytest.approx(0.1)


def test_score_best_level__throughput_takes_the_high_end_of_the_rolling_means():
    # Days 90, 90, 90, 120 roll to 90, 100; linear interpolation puts the 95 % point at 99.5.
    assert score("TensorRT-LLM 5 %", history=(90.0, 90.0, 90.0, 120.0), candidate=(79.6,), higher=True) == pytest.approx(0.2)


def test_score_welch__equal_sizes_and_spreads():
    # Means 2 and 5, variances 1 and 1, three each: t = 3 / sqrt(2 / 3) = 3.674 on 4 degrees; one-sided p = 0.01065.
    assert 10 ** -score("Welch t", base=(1.0, 2.0, 3.0), candidate=(4.0, 5.0, 6.0)) == pytest.approx(0.010656, rel=1e-3)


def test_score_mann_whitney__full_separation_of_three_and_three():
    # One of the C(6, 3) = 20 orders is as extreme.
    assert 10 ** -score("Mann-Whitney", base=(1.0, 2.0, 3.0), candidate=(4.0, 5.0, 6.0)) == pytest.approx(1 / 20)


def test_score_mann_whitney__throughput_counts_downwards():
    assert 10 ** -score("Mann-Whitney", base=(4.0, 5.0, 6.0), candidate=(1.0, 2.0, 3.0), higher=True) == pytest.approx(1 / 20)


def test_score_benchstat__full_separation_of_four_and_four():
    # 2 of the C(8, 4) = 70 orders: the least p that four runs a side can reach.
    worse = score("benchstat", base=(1.0, 2.0, 3.0, 4.0), candidate=(5.0, 6.0, 7.0, 8.0))

    assert 10**-worse == pytest.approx(2 / 70)


def test_score_benchstat__a_significant_gain_scores_nothing():
    assert score("benchstat", base=(5.0, 6.0, 7.0, 8.0), candidate=(1.0, 2.0, 3.0, 4.0)) == 0.0


def test_worst__takes_the_most_alarming_metric():
    two = Evidence(
        base=np.full((1, 1, 2), 100.0),
        candidate=np.array([[[101.0, 92.0]]]),
        history=np.empty((1, 0, 2)),
        higher=np.array([False, True]),
    )

    assert RULES["fixed 5 %"].worst(two) == pytest.approx([0.08])


def test_limit_at__lets_exactly_the_allowed_share_alarm():
    scores = np.arange(200.0)

    limit = limit_at(scores, 0.01)

    assert int((scores > limit).sum()) == 2


def test_limit_at__ties_stay_below_the_rate():
    scores = np.array([0.0] * 90 + [7.0] * 10)

    limit = limit_at(scores, 0.05)

    assert int((scores > limit).sum()) == 0


def test_rivals__every_limit_is_what_its_users_set():
    limits = {name: rule.limit for name, rule in RULES.items()}

    assert limits == {
        "fixed 5 %": 0.05,
        "fixed 10 %": 0.10,
        "mean + 3 sd": 3.0,
        "median + 3 MAD": 3.0,
        "Welch t": -math.log10(0.05),
        "Mann-Whitney": -math.log10(0.05),
        "SGLang nightly 10 %": 0.10,
        "TensorRT-LLM 5 %": 0.05,
        "TensorRT-LLM 10 %": 0.10,
        "benchstat": -math.log10(0.05),
    }


def test_list_tries__every_alpha_by_the_stored_blocks_of_the_case_and_the_shipped_one_by_more():
    rows = [(design.stored, plan.alpha) for design, plans in list_tries() for plan in plans]

    assert rows == [*((20, alpha) for alpha in ALPHAS), *((stored, PLAN.alpha) for stored in STORED)]


def test_study__a_stricter_alpha_judges_the_same_windows_and_finds_no_more():
    design, plans = next(iter(list_tries()))

    rows = study(design, plans, (11, 0), 200, 100)

    assert [row["equal"]["regression"]["tries"] for row in rows] == [200] * len(ALPHAS)
    found = [row["slower"]["regression"]["count"] for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] > rows[0]["equal"]["regression"]["count"]
    assert {(row["stored"], row["sessions"]) for row in rows} == {(20, 5)}


def test_guard_count__windows_keep_two_blocks_from_agreeing_by_chance():
    found = count(np.random.default_rng(5), list_designs()["as mixed-c16 on H200s, no baseline"], 400)

    alarms = {way: found[way]["regression"]["count"] for way in WAYS}
    assert alarms["a floor"] <= alarms["a guard of two blocks"] <= 3 < alarms["nothing"]


def test_compare_all__whole_verdicts_say_what_plain_numbers_say():
    outcomes, differences = compare_all(np.random.default_rng(3), 20)

    assert differences == []
    assert outcomes.total() == 20
    assert outcomes["REGRESSION"] > 5
