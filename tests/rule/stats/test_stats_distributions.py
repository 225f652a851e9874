"""Student's t, Holm, the moderated t and binomial bounds against values from tables and other software."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.stats.binomial import bound_rate, bound_rate_below
from perfgate.stats.looks import reject
from perfgate.stats.moderated import Estimate, Prior, estimate, find_quantile, standardise


@pytest.mark.parametrize(("probability", "df", "expected"), [(0.95, 7, 1.894579), (0.975, 1, 12.706205), (0.999, 5, 5.893430)])
def test_find_quantile__as_tabulated(probability, df, expected):
    assert find_quantile(probability, df) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "expected"), [(inf, 0.0), (-inf, 1.0), (0.0, 0.5), (1e200, 0.0), (-1e200, 1.0), (1e-200, 0.5)]
)
def test_p_worse__at_the_ends(mean, expected):
    found = Estimate(mean=mean, standard_error=1.0, df=3)

    assert (found.p_worse, found.p_better) == (expected, 1 - expected)


def test_p_worse__nothing_varies():
    assert [Estimate(mean=mean, standard_error=0.0, df=3).p_worse for mean in (0.1, 0.0, -0.1)] == [0.0, 0.5, 1.0]


@given(st.floats(0.501, 1 - 1e-9), st.floats(1, 2000))
def test_p_worse__is_the_inverse_of_the_reach(probability, df):
    reach = Estimate(mean=0.0, standard_error=0.02, df=df).reach(probability)

    assert Estimate(mean=reach, standard_error=0.02, df=df).p_worse == pytest.approx(1 - probability, rel=1e-9)


@pytest.mark.parametrize(("mean", "error", "expected"), [(2.0, 4.0, 0.5), (1.0, 0.0, inf), (-1.0, 0.0, -inf), (0.0, 0.0, 0.0)])
def test_standardise__also_where_nothing_varies(mean, error, expected):
    assert standardise(mean, error) == expected


def test_reject__stops_at_the_first_that_fails():
    # 0.01 <= 0.05/4, 0.012 <= 0.05/3, 0.04 > 0.05/2: the last two stand, although 0.045 < 0.05.
    assert reject([0.04, 0.01, 0.045, 0.012], 0.05) == [False, True, False, True]


def test_reject__nothing_asked():
    assert reject([], 0.05) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.data())
def test_reject__a_smaller_p_value_never_loses_a_rejection(p_values, data):
    index = data.draw(st.integers(0, len(p_values) - 1))
    smaller = [*p_values]
    smaller[index] = data.draw(st.floats(0, p_values[index]))

    before, after = reject(p_values, 0.05), reject(smaller, 0.05)

    assert all(now or not then for then, now in zip(before, after, strict=True))


def test_estimate__without_prior_is_the_plain_t():
    found = estimate([0.01, 0.03, 0.05], Prior())

    # mean 0.03, s 0.02, SE 0.02 / sqrt(3), t 2.598 on 2 degrees of freedom
    assert (found.mean, found.standard_error, found.df) == (pytest.approx(0.03), pytest.approx(0.0115470), 2)
    assert found.p_worse == pytest.approx(0.0608, abs=1e-4)
    assert found.p_better == pytest.approx(1 - found.p_worse)


def test_estimate__leans_on_the_prior_with_its_degrees_of_freedom():
    found = estimate([0.00, 0.02], Prior(variance=0.0001, df=6), phi=2.0)

    # (6 * 2 * 1e-4 + 1 * 2e-4) / 7, halved under the root
    assert found.standard_error == pytest.approx((14e-4 / 7 / 2) ** 0.5)
    assert found.df == 7


def test_reach__is_the_quantile_as_tabulated_times_the_standard_error():
    assert Estimate(mean=0.01, standard_error=0.02, df=7).reach(0.95) == pytest.approx(0.02 * 1.894579, rel=1e-6)


def test_estimate__one_block_without_prior_knows_nothing():
    found = estimate([0.5], Prior())

    assert (found.reach(0.95), found.p_worse, found.p_better) == (inf, 1.0, 1.0)


@pytest.mark.parametrize(
    ("errors", "tries", "expected"), [(0, 300, 0.009936), (3, 352, 0.021879), (5, 5, 1.0), (0, 8000, 0.000374)]
)
def test_bound_rate__as_clopper_and_pearson(errors, tries, expected):
    assert bound_rate(errors, tries) == pytest.approx(expected, abs=1e-5)


def test_bound_rate_below__is_the_mirror_image():
    assert bound_rate_below(300, 300) == pytest.approx(1 - bound_rate(0, 300))


@pytest.mark.parametrize(("errors", "tries"), [(3, 2), (-1, 2), (0, 0)])
def test_bound_rate__impossible_counts(errors, tries):
    with pytest.raises(ValueError, match="cannot be"):
        bound_rate(errors, tries)


def test_bound_rate__one_try_bounds_a_little():
    assert bound_rate(0, 1) == pytest.approx(0.95)
    assert bound_rate_below(300, 300, 0.99) == pytest.approx(1 - bound_rate(0, 300, 0.99))


def test_reject__a_p_value_on_its_level_is_rejected():
    assert reject([0.05, 0.025], 0.05) == [True, True]


def test_estimate__phi_left_out_inflates_nothing():
    prior = Prior(variance=0.0001, df=6)

    assert estimate([0.01, 0.02], prior) == estimate([0.01, 0.02], prior, phi=1.0)
