"""Room for letters: what is folded or shortened fits by the widths of a wide family."""

from __future__ import annotations

import pytest

from perfgate.report.chart.letters import fold_text, measure_text, shorten_text

TITLES = [
    "Output throughput, tok/s (higher is better)",
    "Clock held back by heat or supply, % of samples",
    "P99 ITL, ms (lower is better)",
]


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("room", [120.0, 298.0, 2000.0])
def test_fold_text__each_line_fits_and_no_word_is_lost(title, room):
    lines = fold_text(title, room, 13.0)

    assert " ".join(lines) == title
    assert all(measure_text(line, 13.0) <= room for line in lines)


def test_fold_text__breaks_before_a_bracket():
    assert fold_text(TITLES[0], 298.0, 13.0) == ["Output throughput, tok/s", "(higher is better)"]


def test_fold_text__a_word_wider_than_the_room_stands_alone():
    assert fold_text("a " + "w" * 40 + " b", 60.0, 13.0) == ["a", "w" * 40, "b"]


def test_shorten_text__keeps_what_fits():
    assert shorten_text("fused_moe_kernel", 300.0, 12.0) == "fused_moe_kernel"


@pytest.mark.parametrize("letter", ["i", "W", "\N{CJK UNIFIED IDEOGRAPH-6F22}"])
def test_shorten_text__what_is_left_fits(letter):
    short = shorten_text(letter * 200, 342.0, 12.0)

    assert short.endswith("...")
    assert 300.0 < measure_text(short, 12.0) <= 342.0


def test_measure_text__a_letter_that_it_does_not_know_is_as_wide_as_the_widest():
    assert measure_text("\N{CJK UNIFIED IDEOGRAPH-6F22}", 12.0) == measure_text("W", 12.0)
