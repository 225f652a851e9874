"""The power of one metric's test, against closed forms and against the rule itself."""

from __future__ import annotations

from math import inf, log1p, sqrt

import numpy as np
import pytest
from scipy.special import nctdtr, ndtr, stdtrit

from perfgate.core import Outcome
from perfgate.stats.looks import LookPlan, Series, decide
from perfgate.stats.moderated import Prior
from perfgate.stats.power import MetricTest, find_power, find_smallest_effect


def trial(**changed):
    return MetricTest(**{"blocks": 3, "block_sd": 0.007, "prior_df": 6.0, "alpha": 0.0005, "floor": 0.0} | changed)


@pytest.mark.parametrize(("blocks", "prior_df", "effect"), [(2, 6.0, 0.05), (3, 6.0, 0.03), (6, 4.0, 0.01), (3, 0.0, 0.05)])
def test_find_power__without_floor_is_noncentral_t(blocks, prior_df, effect):
    one = trial(blocks=blocks, prior_df=prior_df)
    expected = 1 - nctdtr(one.df, effect / one.standard_error, stdtrit(one.df, 1 - one.alpha))

    assert find_power(one, effect) == pytest.approx(expected, abs=2e-3)


def test_find_power__of_no_effect_is_alpha():
    assert find_power(trial(alpha=0.05), 0.0) == pytest.approx(0.05, abs=1e-3)


def test_find_power__floor_above_the_test_is_a_normal_tail():
    one = trial(alpha=0.4, floor=0.02)
    expected = float(ndtr((0.025 - 0.02) / one.standard_error))

    assert find_power(one, 0.025) == pytest.approx(expected, abs=1e-6)


def test_find_power__one_block_without_stored_noise_finds_nothing():
    assert find_power(trial(blocks=1, prior_df=0.0), 0.5) == 0.0
    assert find_smallest_effect(trial(blocks=1, prior_df=0.0)) == inf


def test_find_power__without_noise_only_the_floor_counts():
    assert find_power(trial(block_sd=0.0, floor=0.015), 0.016) == 1.0
    assert find_power(trial(block_sd=0.0, floor=0.015), 0.014) == 0.0


def test_find_smallest_effect__is_found_with_the_power_asked_for():
    one = trial(floor=0.015)

    effect = find_smallest_effect(one, 0.9)

    assert find_power(one, effect) == pytest.approx(0.9, abs=1e-6)


def test_find_smallest_effect__without_noise_is_the_floor():
    assert find_smallest_effect(trial(block_sd=0.0, floor=0.015)) == pytest.approx(0.015, rel=1e-6)


def test_find_smallest_effect__shrinks_with_blocks_and_stored_noise():
    smallest = [find_smallest_effect(trial(blocks=blocks)) for blocks in (2, 3, 4, 6)]

    assert smallest == sorted(smallest, reverse=True)
    assert find_smallest_effect(trial(prior_df=12.0)) < find_smallest_effect(trial(prior_df=6.0))


def test_find_power__agrees_with_the_rule_on_simulated_blocks():
    # The formula against `decide`, asked 4,000 times with the stored spread drawn as 6 degrees of freedom would have it.
    rng = np.random.default_rng(7)
    plan, margin, sd = LookPlan(alpha=0.0025, looks=(3,)), log1p(0.03), 0.008
    tries, effect = 4000, log1p(0.03)
    stored = sd**2 * rng.chisquare(6, tries) / 6
    blocks = rng.normal(effect, sd, (tries, 3))
    found = sum(
        decide([Series(differences=tuple(one), margin_log=margin, prior=Prior(variance=float(variance), df=6.0))], plan).outcome
        is Outcome.REGRESSION
        for one, variance in zip(blocks.tolist(), stored, strict=True)
    )

    power = find_power(trial(block_sd=sd, alpha=0.0025, floor=margin / 2), effect)

    assert found / tries == pytest.approx(power, abs=4 * sqrt(power * (1 - power) / tries))


def test_find_power__one_degree_of_freedom_is_enough_to_find_much():
    one = trial(blocks=2, prior_df=0.0, alpha=0.05)

    assert find_power(one, 10.0) > 0.9
    assert find_power(one, find_smallest_effect(one)) == pytest.approx(0.9, abs=1e-6)


def test_find_power__an_effect_of_the_floor_does_not_exceed_it():
    assert find_power(trial(block_sd=0.0, floor=0.015), 0.015) == 0.0


def test_find_smallest_effect__with_little_power_asked_for():
    one = trial(alpha=0.05)

    assert find_power(one, find_smallest_effect(one, 0.2)) == pytest.approx(0.2, abs=1e-6)


@pytest.mark.timeout(60)
def test_find_smallest_effect__without_noise_and_floor_is_nothing():
    assert find_smallest_effect(trial(block_sd=0.0, floor=0.0)) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("block_sd", [7e-9, 7e-6, 0.7])
def test_find_smallest_effect__is_in_proportion_to_noise(block_sd):
    expected = find_smallest_effect(trial(block_sd=7e-3)) * block_sd / 7e-3

    assert find_smallest_effect(trial(block_sd=block_sd)) == pytest.approx(expected, rel=1e-9, abs=0.0)


def test_find_smallest_effect__nothing_asked_for_is_found_with_no_effect():
    assert find_smallest_effect(trial(block_sd=0.0, floor=0.015), 0.0) == pytest.approx(0.0, abs=1e-9)
