"""Where the loss came in: the posterior against brute force and against formulas by hand, and what can never happen."""

from __future__ import annotations

from math import exp, fsum, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import fdtrc, stdtr

from perfgate.bisection.posterior import TINY, Look, weigh
from perfgate.stats.moderated import Prior

PRIOR = Prior(variance=0.01**2, df=4)
QUIET = Prior(variance=0.005**2, df=9)


def look(place, *differences):
    return Look(place=place, differences=differences)


def integrate(looks, place, prior, floor):
    """The likelihood of one place by brute force: sums over a grid of losses and of variances; place None is no loss."""
    total = 0.0
    steps = 150
    for number in range(steps):
        variance = prior.variance * exp(-4 + 10 * (number + 0.5) / steps)
        weight = variance ** (-prior.df / 2) * exp(-prior.df * prior.variance / (2 * variance)) * 10 / steps
        effects = [0.0] if place is None else [floor + 0.2 * (k + 0.5) / steps for k in range(steps)]
        for effect in effects:
            density = 1.0 if place is None else 0.2 / steps
            for one in looks:
                mean = effect if place is not None and one.place >= place else 0.0
                for value in one.differences:
                    density *= exp(-((value - mean) ** 2) / (2 * variance)) / sqrt(2 * pi * variance)
            total += weight * density
    return total


@pytest.mark.parametrize("start", [(), (0.004, -0.016)])
def test_weigh__agrees_with_brute_force(start):
    looks = [look(0, *start), look(1, 0.012), look(2, 0.018, 0.009), look(3, 0.031), look(4, 0.028, 0.035)]
    found = weigh(looks, 4, PRIOR, 0.015)
    weights = [integrate(looks, place, PRIOR, 0.015) / 4 for place in range(1, 5)]
    none = integrate(looks, None, PRIOR, 0.015)
    whole = fsum(weights) + none

    assert found.places == pytest.approx([weight / whole for weight in weights], rel=0.02)
    assert found.none == pytest.approx(none / whole, rel=0.02)


def test_weigh__blocks_on_both_sides_leave_one_place():
    found = weigh([look(2, 0.001), look(3, 0.101), look(5, 0.099, 0.1)], 5, PRIOR, 0.015)

    assert found.places[2] > 0.999
    assert found.suspicions[1] < 0.001
    assert found.suspicions[2] > 0.999
    assert found.effect == pytest.approx(0.1)


def test_weigh__what_was_not_measured_is_shared_evenly():
    found = weigh([look(2, 0.0), look(5, 0.1, 0.1)], 5, PRIOR, 0.015)

    assert found.places[2] == found.places[3] == pytest.approx(found.places[4])
    assert found.places[0] == pytest.approx(found.places[1])


def test_weigh__no_loss_at_all_is_an_answer_too():
    found = weigh([look(3, *(0.001, -0.002, 0.0, 0.002, -0.001, 0.001))], 3, PRIOR, 0.015)

    assert found.none > 0.95


def test_weigh__a_gain_is_no_loss():
    found = weigh([look(3, -0.1, -0.1)], 3, PRIOR, 0.015)

    assert found.none > 0.9


def test_weigh__numbers_that_do_not_vary_are_no_division_by_zero():
    found = weigh([look(1, 0.0), look(2, 0.5), look(3, 0.5, 0.5)], 3, Prior(), 0.015)

    assert found.places[1] > 0.99


def test_weigh__one_block_and_nothing_stored():
    found = weigh([look(3, 0.1)], 3, Prior(), 0.015)
    # No place tells more than another; no loss has the likelihood Gamma(1/2) (V/2)^(-1/2) (2 pi)^(-1/2) = 1 / 0.1.
    none = 10.0

    assert found.places == pytest.approx([1 / 3 / (1 + none)] * 3)
    assert found.none == pytest.approx(none / (1 + none))
    assert found.deviation == pytest.approx(sqrt(TINY))


def test_weigh__two_blocks_and_nothing_stored():
    found = weigh([look(1, 0.02), look(2, 0.1)], 2, Prior(), 0.015)
    # The docstring's formula with a = 1/2, by hand: V around 0.06, then 0.02 squared; without a loss a = 1.
    first = 2**-0.5 * (0.0032 / 2) ** -0.5 * stdtr(1, (0.06 - 0.015) / sqrt(0.0032 / 2)) / sqrt(2)
    second = (0.0004 / 2) ** -0.5 * stdtr(1, (0.1 - 0.015) / 0.02) / sqrt(2)
    none = 1 / (0.0104 / 2) / (2 * pi)
    whole = (first + second) / 2 + none

    assert found.places == pytest.approx([first / 2 / whole, second / 2 / whole])
    assert found.none == pytest.approx(none / whole)


def test_weigh__numbers_that_do_not_vary_have_the_least_variance():
    same = weigh([look(1, 0.5), look(2, 0.5, 0.5)], 2, Prior(), 0.015)
    nothing = weigh([look(1, 0.0, 0.0)], 1, Prior(), 0.0)
    # V = 2 TINY on one degree of freedom with a loss, half of which is above the floor, and on two without.
    loss, none = 2**-0.5 * TINY**-0.5 / 2 / sqrt(2), 1 / TINY / (2 * pi)

    assert same.deviation == pytest.approx(sqrt(3 * TINY / 2), rel=1e-6)
    assert nothing.places == pytest.approx([loss / (loss + none)], rel=1e-6)


def test_weigh__a_loss_that_is_beyond_any_double_is_none():
    found = weigh([look(1, -0.2, -0.2)], 1, Prior(variance=1e-6, df=400), 0.015)

    assert (found.places, found.none) == ((0.0,), 1.0)


def test_weigh__two_losses_are_a_misfit():
    one = weigh([look(2, 0.0), look(4, 0.041), look(6, 0.04, 0.04)], 6, QUIET, 0.015)
    two = weigh([look(2, 0.0), look(4, 0.04), look(6, 0.12, 0.12)], 6, QUIET, 0.015)

    assert two.misfit < 0.01 < one.misfit


@pytest.mark.parametrize("place", [1, 2])
def test_weigh__without_the_last_place(place):
    with pytest.raises(ValueError, match=r"^the last place was not measured"):
        weigh([look(place, 0.0)], 3, PRIOR, 0.015)


def test_weigh__noise_is_what_all_blocks_say_of_it():
    found = weigh([look(0, 0.004, -0.011), look(1, 0.02), look(2, 0.1, 0.11)], 2, PRIOR, 0.015)
    squares = 0.004**2 + 0.011**2 + 0.02**2 + 2 * 0.005**2

    assert found.deviation == pytest.approx(sqrt((4 * 0.01**2 + squares) / (4 + 5 - 1)))
    assert found.misfit == pytest.approx(fdtrc(4, 4, squares / 4 / 0.01**2))


@pytest.mark.parametrize("prior", [Prior(), Prior(variance=0.01**2, df=0), Prior(variance=0.0, df=4)])
def test_weigh__nothing_is_a_misfit_where_no_noise_is_stored(prior):
    assert weigh([look(1, 0.0), look(2, 0.04, 0.1)], 2, prior, 0.015).misfit == 1.0


def test_weigh__blocks_that_are_the_same_are_no_misfit():
    assert weigh([look(1, 0.5, 0.5)], 1, PRIOR, 0.015).misfit == 1.0
    assert weigh([look(1, 0.5)], 1, PRIOR, 0.015).misfit == 1.0


def test_weigh__many_quiet_blocks_stay_within_doubles():
    found = weigh([look(1, *[0.0] * 100), look(2, *[0.1] * 100)], 2, Prior(variance=1e-10, df=9), 0.015)

    assert found.places == (0.0, 1.0)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(-0.2, 0.2)), max_size=12),
    st.sampled_from([Prior(), PRIOR, Prior(variance=1e-8, df=9)]),
)
def test_weigh__is_a_distribution(pairs, prior):
    found = weigh([look(9, 0.1, 0.11), *(look(place, value) for place, value in pairs)], 9, prior, 0.015)

    assert fsum(found.places) + found.none == pytest.approx(1.0)
    assert min(*found.places, found.none) >= 0


def test_weigh__is_right_as_often_as_it_says():
    """Of searches drawn from the model's own prior, the culprit's posterior averages to how often it is the culprit."""
    draw = np.random.default_rng(7)
    claimed, right = 0.0, 0
    for _ in range(400):
        culprit = draw.integers(1, 7)
        found = weigh(
            [look(place, draw.normal(0.03 if place >= culprit else 0.0, 0.02)) for place in (2, 3, 4, 6, 6, 6)],
            6,
            Prior(variance=0.02**2, df=50),
            0.0,
        )
        best = max(range(6), key=found.places.__getitem__)
        claimed += found.places[best] / fsum(found.places)
        right += best + 1 == culprit

    assert right / 400 == pytest.approx(claimed / 400, abs=0.08)
