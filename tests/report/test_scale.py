"""Scales and ticks: what stands where, and what is written there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.report.chart.svg import OUTLINES, Scale, dot, find_span, show_number

NUMBERS = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


def test_place__ends_and_middle():
    linear = Scale(low=10, high=20, start=100, end=0)
    logarithm = Scale(low=1, high=100, start=0, end=100, is_log=True)

    assert [linear.place(value) for value in (10, 15, 20)] == [100, 50, 0]
    assert [logarithm.place(value) for value in (1, 10, 100)] == pytest.approx([0, 50, 100])
    assert (linear.clamp(99), linear.holds(99), linear.holds(20)) == (0, False, True)


@pytest.mark.parametrize(
    ("low", "high", "is_log", "ticks"),
    [
        (0, 100, False, (0, 20, 40, 60, 80, 100)),
        (3451.2, 3655.0, False, (3500, 3550, 3600, 3650)),
        (0.5, 200, True, (1, 3, 10, 30, 100)),
        (9, 90, True, (10, 20, 50)),
        (210, 240, True, (210, 215, 220, 225, 230, 235, 240)),
    ],
)
def test_list_ticks__are_round(low, high, is_log, ticks):
    found = Scale(low=low, high=high, start=0, end=100, is_log=is_log).list_ticks(5)

    assert found == pytest.approx(ticks)


@given(st.lists(NUMBERS, max_size=20), st.integers(1, 9))
def test_find_span__holds_its_values_and_has_ticks(values, count):
    low, high = find_span(values)
    scale = Scale(low=low, high=high, start=0, end=100)

    assert low < high
    assert all(low <= value <= high for value in values)
    assert all(-0.001 <= scale.place(tick) <= 100.001 for tick in scale.list_ticks(count))


def test_find_span__of_nothing_and_of_what_is_no_number():
    assert find_span([]) == (0.0, 1.0)
    assert find_span([float("nan"), float("inf")]) == (0.0, 1.0)


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (0.25, "0.25"), (1500, "1,500"), (1e-9, "1e-09"), (12.5, "12.5")])
def test_show_number__says_no_more_than_it_knows(number, text):
    assert show_number(number) == text


def test_dot__outlines_differ():
    assert len({str(dot((10, 10), outline, "base").at) for outline in OUTLINES}) == len(OUTLINES)
