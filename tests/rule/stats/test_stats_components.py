"""Variance components against hand-computed tables and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest

from perfgate.stats.components import find_offset_variance, measure_variance, split_variance


def test_split_variance__balanced_by_hand():
    # Two sessions of two starts of two windows. Windows: SS 4 * 0.5 = 2 on 4 df. Starts: means 1.5, 3.5 and 5.5, 7.5: SS 8 on
    # 2 df. Sessions: means 2.5, 6.5: SS 32 on 1 df. MS 0.5, 4, 32: start (4 - 0.5) / 2, session (32 - 4) / 4.
    found = split_variance([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])

    assert (found.window.variance, found.window.df) == (pytest.approx(0.5), 4)
    assert (found.start.variance, found.start.df) == (pytest.approx(1.75), 2)
    assert (found.session.variance, found.session.df) == (pytest.approx(7.0), 1)


def test_split_variance__unbalanced_finds_the_truth_on_average():
    draw = np.random.default_rng(3)
    found = [split_variance(_simulate(draw)) for _ in range(400)]

    # Truncation at zero biases upwards a little; 10 % covers it and the 400 draws.
    assert np.mean([one.window.variance for one in found]) == pytest.approx(1.0, rel=0.05)
    assert np.mean([one.start.variance for one in found]) == pytest.approx(2.0, rel=0.10)
    assert np.mean([one.session.variance for one in found]) == pytest.approx(4.0, rel=0.10)


def _simulate(draw):
    sessions = []
    for session in range(12):
        level = draw.normal(0, 2.0)
        starts = [level + draw.normal(0, 2.0**0.5) for _ in range(1 + session % 3)]
        sessions.append([list(start + draw.normal(0, 1.0, size=2 + index)) for index, start in enumerate(starts)])
    return sessions


def test_split_variance__a_negative_estimate_is_zero():
    found = split_variance([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])

    assert (found.start.variance, found.session.variance) == (0.0, 0.0)


def test_split_variance__one_window_has_no_noise_to_show():
    found = split_variance([[[5.0]]])

    assert [(part.variance, part.df) for _, part in found.by_level()] == [(0.0, 0), (0.0, 0), (0.0, 0)]


@pytest.mark.parametrize("sessions", [[], [[]], [[[]]], [[[1.0]], []]])
def test_split_variance__nothing_measured(sessions):
    with pytest.raises(ValueError, match=r"^variance components need at least one"):
        split_variance(sessions)


@pytest.mark.parametrize(("windows", "share"), [(1, 1.0), (3, 0.4487), (9, np.pi / 18)])
def test_predict_variance__of_a_median_of_windows(windows, share):
    found = split_variance([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])

    assert found.predict_variance(windows) == pytest.approx(7.0 + 1.75 + 0.5 * share)


def test_by_level__names_the_levels_from_within():
    found = split_variance([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])

    assert found.by_level() == (("window", found.window), ("start", found.start), ("session", found.session))


def test_measure_variance__is_unbiased():
    assert measure_variance([1.0, 2.0, 3.0, 6.0]) == pytest.approx(np.var([1, 2, 3, 6], ddof=1))


def test_split_variance__one_window_a_start_leaves_starts_and_sessions():
    # Starts: means 1, 3 and 5, 7: SS 4 on 2 df, so MS 2. Sessions: means 2, 6: SS 16 on 1 df; (16 - 2) / 2.
    found = split_variance([[[1], [3]], [[5], [7]]])

    assert [part.variance for _, part in found.by_level()] == [0.0, pytest.approx(2.0), pytest.approx(7.0)]


def test_find_offset_variance__of_sessions_that_lean_to_one_side():
    sessions = [[0.010, 0.012], [-0.011, -0.009], [0.001, -0.001]]

    within = (0.001**2 * 2 * 3) / 3
    between = 2 * (0.011**2 + 0.010**2 + 0.0**2) / 3
    assert find_offset_variance(sessions) == pytest.approx((between - within) * 3 / 6)


@pytest.mark.parametrize("sessions", [[], [[0.01]], [[0.01], [0.02]], [[0.01, -0.01], [0.01, -0.01]]])
def test_find_offset_variance__without_two_blocks_of_a_session_or_any_lean_is_zero(sessions):
    assert find_offset_variance(sessions) == 0.0


def test_find_offset_variance__recovers_what_was_drawn():
    rng = np.random.default_rng(3)
    drawn = rng.normal(0.0, 0.007, (4000, 1)) + rng.normal(0.0, 0.010, (4000, 4))

    assert find_offset_variance(drawn.tolist()) == pytest.approx(0.007**2, rel=0.1)
