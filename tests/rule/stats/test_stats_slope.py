"""The slope of a start's windows: exact on a line, unmoved by a point that lies anywhere, a factor that is above zero."""

from __future__ import annotations

import pytest

from perfgate.stats.slope import find_growth, find_slope

LINE = tuple((60.0 * number, 100.0 + 3.0 * number) for number in range(5))
"""Windows of 60 requests, each 3 above the one before; the median is 106."""


def test_find_slope__line():
    assert find_slope(LINE) == pytest.approx(0.05)


@pytest.mark.parametrize("value", [0.0, 1e6])
@pytest.mark.parametrize("place", range(5))
def test_find_slope__one_of_five_points_anywhere(place, value):
    points = [*LINE[:place], (60.0 * place, value), *LINE[place + 1 :]]

    # Four of ten pairs hold the outlier, so that the middle two are pairs of the line whichever way those four go.
    assert find_slope(points) == pytest.approx(0.05)


def test_find_slope__points_at_one_place_make_no_pair():
    assert find_slope([*LINE, (0.0, 1e9)]) == pytest.approx(0.05, rel=0.2)


def test_find_growth__at_the_pace_of_the_start():
    assert find_growth(LINE) == pytest.approx(1 + 10_000 * 0.05 / 106.0)


def test_find_growth__steps_up_and_down_are_equally_far_from_one():
    down = [(served, value) for (served, _), (_, value) in zip(LINE, reversed(LINE), strict=True)]

    assert find_growth(LINE) * find_growth(down) == pytest.approx(1.0)
    assert find_growth([(served, 7.0) for served, _ in LINE]) == 1.0


def test_find_growth__a_fall_to_nothing_stays_above_zero():
    assert 0 < find_growth([(served, 100.0 - served / 2.5) for served, _ in LINE]) < 0.05
