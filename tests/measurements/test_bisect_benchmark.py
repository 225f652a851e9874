"""The published figures on bisecting are those of the stored results, and the searches behind them are what they claim."""

import pytest

from benchmarks.bisect.ranges import COMMITS, Noise, draw_range
from benchmarks.bisect.render import HERE, PAGE, write_page
from benchmarks.bisect.searchers import SEARCHERS, bisect_by
from benchmarks.verdict.record import read_results

QUIET = Noise(scenario="none", metric="none", deviation=0.001, blocks=6, minutes=1.0)


def test_page__shows_the_stored_results():
    assert write_page(read_results("results", HERE)) == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in SEARCHERS if "5 %" not in name or "1.5 %" in name])
def test_searchers__without_noise_all_are_right(name):
    drawn = [draw_range(QUIET, seed) for seed in range(3)]

    assert [SEARCHERS[name](QUIET, one).named for one in drawn] == [one.culprit for one in drawn]


@pytest.mark.parametrize("culprit", [1, 2, 33, COMMITS])
def test_bisect_by__is_git_bisect(culprit):
    named, asked = bisect_by(lambda place: place >= culprit)

    assert (named, asked) == (culprit, 6)


def test_bisect_by__skips_to_the_nearest():
    named, _ = bisect_by(lambda place: None if place == 32 else place >= 20)

    assert named == 20


def test_bisect_by__only_skipped_ones_are_left():
    named, _ = bisect_by(lambda place: None if 30 <= place <= 35 else place >= 33)

    assert named is None
