"""Tail estimates against their definitions, computed the long way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc
from scipy.stats.mstats import hdquantiles

from perfgate.stats.tails import average_worst, estimate_quantile


def test_average_worst__whole_samples():
    assert average_worst(range(1, 101), 0.05) == pytest.approx(98.0)


def test_average_worst__a_part_of_a_sample_counts_with_that_part():
    # 5 % of 30 is 1.5: the largest in full, the second half.
    assert average_worst(range(1, 31), 0.05) == pytest.approx((30 + 0.5 * 29) / 1.5)


def test_average_worst__fewer_samples_than_one_share():
    assert average_worst([3.0, 7.0], 0.05) == pytest.approx(7.0)


@pytest.mark.parametrize("probability", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("size", [3, 50, 2000])
def test_estimate_quantile__agrees_with_scipy(probability, size):
    samples = np.random.default_rng(7).lognormal(size=size)

    assert estimate_quantile(samples, probability) == pytest.approx(float(hdquantiles(samples, [probability])[0]), rel=1e-9)


def test_estimate_quantile__weighing_only_the_neighbourhood_changes_nothing():
    samples = np.sort(np.random.default_rng(1).lognormal(size=20_000))
    edges = betainc(20_001 * 0.99, 20_001 * 0.01, np.arange(20_001) / 20_000)

    assert estimate_quantile(samples, 0.99) == pytest.approx(float(samples @ np.diff(edges)), rel=1e-12)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.floats(0.001, 1000), st.randoms())
def test_tails__scale_and_ignore_order(samples, scale, shuffler):
    shuffled = [scale * sample for sample in samples]
    shuffler.shuffle(shuffled)

    assert estimate_quantile(shuffled, 0.99) == pytest.approx(scale * estimate_quantile(samples, 0.99), rel=1e-9)
    assert average_worst(shuffled) == pytest.approx(scale * average_worst(samples), rel=1e-9)


@pytest.mark.parametrize("tail", [average_worst, lambda samples: estimate_quantile(samples, 0.5)])
@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_tails__no_samples_or_no_numbers(tail, samples):
    with pytest.raises(ValueError, match=r"^a tail needs at least one sample, all of them finite$"):
        tail(samples)
