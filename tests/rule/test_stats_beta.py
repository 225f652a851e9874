"""The incomplete beta function and Student's t, held to scipy's values."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc, stdtr, stdtrit

from perfgate.stats.beta import find_front, find_incomplete, find_incomplete_all
from perfgate.stats.student import find_quantile, find_upper_tail

SHAPES = (0.04, 0.5, 1.0, 2.5, 3.96, 15.9, 16.1, 210.2, 1000.0, 20_800.3)
DEGREES = (1, 1.5, 2, 3, 4.7, 6, 9, 14, 33.3, 100, 398, 1998)


def spread_points(a, b):
    """Points over all of [0, 1], and close together where the distribution lies."""
    mean = a / (a + b)
    sd = (mean * (1 - mean) / (a + b + 1)) ** 0.5
    return np.unique(np.clip([*np.linspace(0, 1, 31), *(mean + sd * np.linspace(-8, 8, 41))], 0, 1))


@pytest.mark.parametrize(("a", "b"), list(product(SHAPES, SHAPES)))
def test_find_incomplete__has_twelve_digits(a, b):
    points = spread_points(a, b)
    expected = betainc(a, b, points)

    found = [find_incomplete(a, b, x, 1 - x) for x in points.tolist()]

    assert found == pytest.approx(expected, rel=1e-12, abs=1e-290)
    assert find_incomplete_all(a, b, points) == pytest.approx(expected, rel=1e-12, abs=1e-290)


@pytest.mark.parametrize(("x", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_find_incomplete__at_the_ends(x, expected):
    assert find_incomplete(2.0, 3.0, x, 1 - x) == expected
    assert find_incomplete_all(2.0, 3.0, np.array([x])).tolist() == [expected]


def test_find_incomplete__never_settles():
    with pytest.raises(ArithmeticError, match="does not settle"):
        find_incomplete(float("nan"), 2.0, 0.5, 0.5)


def test_find_front__of_small_whole_numbers():
    # B(2, 3) = 1! 2! / 4! = 1/12.
    assert find_front(2.0, 3.0, 0.25, 0.75) == pytest.approx(0.25**2 * 0.75**3 * 12, rel=1e-14)


@pytest.mark.parametrize("df", DEGREES)
def test_find_upper_tail__has_twelve_digits(df):
    points = [*np.linspace(-30, 30, 121).tolist(), 1e-4, 1e3, 1e6]

    assert [find_upper_tail(t, df) for t in points] == pytest.approx(stdtr(df, [-t for t in points]), rel=1e-12, abs=1e-290)


def test_find_upper_tail__where_squares_leave_the_range_of_doubles():
    assert (find_upper_tail(1e200, 3), find_upper_tail(-1e200, 3), find_upper_tail(1e-200, 3)) == (0.0, 1.0, 0.5)


@pytest.mark.parametrize("df", DEGREES)
def test_find_quantile__has_twelve_digits(df):
    probabilities = [1e-12, 1e-6, 1e-4, 0.01, 0.2, 0.4, 0.6, 0.8, 0.95, 0.975, 0.9996429, 0.999999, 1 - 1e-9]

    found = [find_quantile(probability, df) for probability in probabilities]

    assert found == pytest.approx(stdtrit(df, probabilities), rel=1e-12)


@pytest.mark.parametrize(("probability", "expected"), [(0.0, -float("inf")), (0.5, 0.0), (1.0, float("inf"))])
def test_find_quantile__at_the_ends(probability, expected):
    assert find_quantile(probability, 4) == expected


@pytest.mark.parametrize("df", DEGREES)
def test_find_upper_tail__falls(df):
    """In steps of a billionth around every point where the calculation changes its course, and over the whole range."""
    turn = (3 * df / (df + 2)) ** 0.5  # x = df / (df + t^2) meets (df/2 + 1) / (df/2 + 5/2)
    fine = {centre + step * 1e-9 for centre in (turn, 0.1, 1.0, 5.0) for step in range(-50, 51)}

    tails = [find_upper_tail(t, df) for t in sorted({*fine, *np.linspace(-5, 40, 901).tolist()})]

    assert all(after < before for before, after in pairwise(tails))


@settings(deadline=None)
@given(st.floats(0.501, 1 - 1e-12), st.floats(1, 2000))
def test_find_quantile__is_the_inverse_of_the_tail(probability, df):
    assert find_upper_tail(find_quantile(probability, df), df) == pytest.approx(1 - probability, rel=1e-12)
