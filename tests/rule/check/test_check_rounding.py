"""Numbers as files hold them."""

from __future__ import annotations

from math import inf, nan

import pytest

from perfgate.storage.rounding import round_floats, round_number


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1 / 3, 0.333333), (123456789.0, 123457000.0), (-0.0, 0.0), (1e-17, 0.0), (2.5e-7, 2.5e-7), (inf, None), (nan, None)],
)
def test_round_number__six_digits_and_no_dust(value, expected):
    found = round_number(value)

    assert found == expected
    assert str(found) != "-0.0"


def test_round_floats__only_floats_change():
    assert round_floats({"a": [1, 1 / 3, "x"], "b": (True, None)}) == {"a": [1, 0.333333, "x"], "b": [True, None]}
