"""Two arms of plain runs, held against scipy and against simulation-free facts."""

from math import inf, log, sqrt

import numpy as np
import pytest
from scipy import stats

from perfgate.stats import welch
from perfgate.stats.moderated import Prior

BASE = [0.10, 0.12, 0.11, 0.15]
CANDIDATE = [0.20, 0.27, 0.23]


def test_compare_arms__agrees_with_scipy_but_for_fewer_degrees_of_freedom():
    found = welch.compare_arms(BASE, CANDIDATE)
    expected = stats.ttest_ind(CANDIDATE, BASE, equal_var=False, alternative="greater")

    assert found.mean / found.standard_error == pytest.approx(expected.statistic)
    assert (found.df, int(expected.df)) == (3, 3)
    assert found.p_worse == pytest.approx(stats.t.sf(expected.statistic, 3))
    assert found.p_worse > expected.pvalue


def draw_equal_arms(smaller, larger, ratio):
    """Log values of 20,000 pairs of equal arms; the smaller arm scatters `ratio` times as much."""
    draw = np.random.default_rng(20261128)
    return draw.normal(0, 0.02, (20_000, larger)), draw.normal(0, 0.02 * ratio, (20_000, smaller))


@pytest.mark.parametrize(("smaller", "larger"), [(3, 6), (3, 10), (3, 20), (3, 30), (4, 8), (3, 3), (6, 6)])
@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0, 10.0])
def test_compare_arms__equal_arms_fail_as_seldom_as_they_may(smaller, larger, ratio):
    quiet, noisy = (arm[:4000].tolist() for arm in draw_equal_arms(smaller, larger, ratio))
    alarms = sum(welch.compare_arms(*arms).p_worse <= 0.01 for arms in zip(quiet, noisy, strict=True))

    # 1.2 % of 4,000 are 48, and three standard deviations of that are 21.
    assert alarms <= 69


@pytest.mark.parametrize(
    ("larger", "ratio", "told"), [(6, 1.0, 0.0108), (6, 3.0, 0.0187), (10, 2.0, 0.0203), (30, 1.0, 0.0227)]
)
def test_draw_equal_arms__fail_twice_as_often_by_welchs_own_degrees_of_freedom(larger, ratio, told):
    quiet, noisy = draw_equal_arms(3, larger, ratio)
    found = stats.ttest_ind(noisy, quiet, equal_var=False, alternative="greater", axis=1)

    assert np.mean(found.pvalue <= 0.01) == pytest.approx(told, abs=0.003)


@pytest.mark.parametrize("step", [0.1, 0.3, 0.7, 1e-4, 1 / 3])
def test_compare_arms__whole_degrees_of_freedom_stay_whole(step):
    arm = [0.0, step]

    assert (welch.compare_arms(arm, arm).df, welch.compare_arms([0.0, 1e-9], [0.0, 1e6 * step]).df) == (2, 1)


def test_compare_arms__single_run_has_no_interval():
    found = welch.compare_arms([0.1], CANDIDATE)

    assert (found.df, found.reach(0.95), found.p_worse) == (0, inf, 1.0)


def test_compare_arms__equal_values_still_scatter_by_the_last_digit():
    found = welch.compare_arms([0.1, 0.1, 0.1], [0.1, 0.1, 0.1])

    assert found.standard_error == pytest.approx(welch.SPREAD_FLOOR * sqrt(2 / 3))


def test_compare_with_prior__stored_spread_is_the_least():
    found = welch.compare_with_prior(BASE, CANDIDATE, Prior(variance=0.04, df=6))

    assert (found.standard_error, found.df) == (pytest.approx(0.2), 6)
    assert found.mean == pytest.approx(welch.compare_arms(BASE, CANDIDATE).mean)


def test_compare_with_prior__wilder_runs_count_themselves():
    assert welch.compare_with_prior(BASE, CANDIDATE, Prior(variance=1e-6, df=6)) == welch.compare_arms(BASE, CANDIDATE)


def test_compare_with_prior__single_runs_rest_on_the_stored_spread():
    assert welch.compare_with_prior([0.1], [0.2], Prior(variance=0.01, df=4)).standard_error == pytest.approx(0.1)


def test_pool_spread__weighs_arms_by_their_degrees_of_freedom():
    spread, df = welch.pool_spread([0.0, 2.0], [0.0, 0.0, 3.0])

    assert (spread, df) == (pytest.approx(sqrt((2 + 6) / 3)), 3)
    assert welch.pool_spread([1.0], [2.0]) == (inf, 0)


def test_bound_spread__upper_limit_shrinks_with_evidence():
    assert welch.bound_spread(1.0, 2) == pytest.approx(sqrt(2 / stats.chi2.ppf(0.2, 2)))
    assert welch.bound_spread(1.0, 100) < welch.bound_spread(1.0, 5) < welch.bound_spread(1.0, 2)
    assert welch.bound_spread(1.0, 0) == inf


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.08])
def test_plan_runs__smallest_number_with_the_promised_power(spread):
    margin, alpha = log(1.03), 0.01

    runs = welch.plan_runs(spread, margin, alpha, least=3)

    assert _power(runs, spread, margin, alpha) >= 0.89
    assert runs == 3 or _power(runs - 1, spread, margin, alpha) < 0.905


def _power(runs, spread, effect, alpha):
    return stats.nct.sf(stats.t.ppf(1 - alpha, runs), runs, effect / (spread * sqrt(2 / runs)))


def test_plan_runs__beyond_reason():
    assert welch.plan_runs(5.0, 0.03, 0.01, least=3) is None
    assert welch.plan_runs(inf, 0.03, 0.01, least=3) is None


def test_plan_blocks__more_noise_takes_more_starts():
    quiet, loud = (welch.plan_blocks(Prior(variance=sd**2, df=6), log(1.03), 0.01) for sd in (0.01, 0.03))

    assert 2 <= quiet < loud
    assert welch.plan_blocks(Prior(variance=9.0, df=6), log(1.03), 0.01) is None


def test_compare_arms__two_runs_an_arm_are_the_least():
    assert welch.compare_arms([0.1, 0.2], CANDIDATE).df > 0


def test_compare_arms__single_runs_still_have_a_difference():
    found = welch.compare_arms([0.1], [0.3])

    assert (found.mean, found.standard_error) == (pytest.approx(0.2), inf)


def test_compare_with_prior__as_wide_as_the_runs_counts_the_stored_blocks():
    found = welch.compare_with_prior([0.0, 2.0], [0.0, 2.0], Prior(variance=2.0, df=4))

    assert (found.standard_error, found.df) == (pytest.approx(sqrt(2)), 4)


def test_pool_spread__a_single_run_tells_nothing_of_its_arm():
    assert welch.pool_spread([1.0], [0.0, 2.0]) == (pytest.approx(sqrt(2)), 1)


def _add_quantiles(df):
    """t_alpha + t_power at alpha = 1 %."""
    return welch.find_quantile(0.99, df) + welch.find_quantile(welch.POWER, df)


@pytest.mark.parametrize("runs", [3, 4, 9, welch.PLAN_LIMIT])
def test_plan_runs__as_many_as_the_formula_needs_and_no_more(runs):
    margin = _add_quantiles(runs) * sqrt(2 / runs)

    assert welch.plan_runs(1.0, margin, 0.01, least=3) == runs
    assert welch.plan_runs(1.0, margin * (1 - 1e-9), 0.01, least=3) == (runs + 1 if runs < welch.PLAN_LIMIT else None)


@pytest.mark.parametrize("blocks", [2, 3, 8, welch.PLAN_LIMIT])
def test_plan_blocks__as_many_as_the_formula_needs_and_no_more(blocks):
    margin = _add_quantiles(6 + blocks - 1) * sqrt(4.0 / blocks)
    prior = Prior(variance=4.0, df=6)

    assert welch.plan_blocks(prior, margin, 0.01) == blocks
    assert welch.plan_blocks(prior, margin * (1 - 1e-9), 0.01) == (blocks + 1 if blocks < welch.PLAN_LIMIT else None)
