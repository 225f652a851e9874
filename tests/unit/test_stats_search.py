"""Where the loss came in: the posterior against brute force, what an answer tells, and what can never happen."""

from __future__ import annotations

from math import exp, fsum, inf, log, log2, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.stats.moderated import Prior
from perfgate.stats.search import Look, Option, choose, list_credible, measure_information, weigh

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


def test_weigh__agrees_with_brute_force():
    looks = [look(1, 0.012), look(2, 0.018, 0.009), look(3, 0.031), look(4, 0.028, 0.035)]
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


def test_weigh__two_losses_are_a_misfit():
    one = weigh([look(2, 0.0), look(4, 0.041), look(6, 0.04, 0.04)], 6, QUIET, 0.015)
    two = weigh([look(2, 0.0), look(4, 0.04), look(6, 0.12, 0.12)], 6, QUIET, 0.015)

    assert two.misfit < 0.01 < one.misfit


def test_weigh__without_the_last_place():
    with pytest.raises(ValueError, match="last place"):
        weigh([look(1, 0.0)], 3, PRIOR, 0.015)


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


def test_measure_information__of_what_is_certain():
    assert measure_information([0.0, 1.0], 3.0) == pytest.approx([0.0, 0.0])


def test_measure_information__of_a_clear_answer_is_its_entropy():
    entropy = -0.1 * log2(0.1) - 0.9 * log2(0.9)

    assert measure_information([0.5, 0.1], inf) == pytest.approx([1.0, entropy], abs=1e-3)


def test_measure_information__of_faint_answers():
    """For small separations the mutual information is p (1 - p) d^2 / (2 ln 2) bits."""
    found = [float(measure_information([0.5], separation)[0]) for separation in (1.0, 2.0, 3.0)]

    assert measure_information([0.3], 0.1) == pytest.approx([0.3 * 0.7 * 0.01 / 2 / log(2)], rel=0.05)
    assert found == sorted(found)


def test_choose__halves_what_is_suspected():
    belief = weigh([look(8, 0.1, 0.1)], 8, PRIOR, 0.015)
    found = choose(belief, [Option(place=place, blocks=1, minutes=1.0) for place in range(1, 9)])

    assert found is not None
    assert found[0].place == 4
    assert found[1] == pytest.approx(1.0, abs=0.01)


def test_choose__what_is_built_already_may_be_off_the_middle():
    belief = weigh([look(8, 0.1, 0.1)], 8, PRIOR, 0.015)
    found = choose(belief, [Option(place=4, blocks=1, minutes=10.0), Option(place=3, blocks=1, minutes=2.0)])

    assert found is not None
    assert found[0].place == 3


def test_choose__more_blocks_where_one_tells_little_and_the_build_is_dear():
    belief = weigh([look(8, 0.03, 0.03)], 8, Prior(variance=0.03**2, df=9), 0.015)
    found = choose(belief, [Option(place=4, blocks=blocks, minutes=30.0 + blocks) for blocks in (1, 2, 3)])

    assert found is not None
    assert found[0].blocks == 3


def test_choose__nothing_is_left_to_ask():
    belief = weigh([look(1, 0.1, 0.1, 0.1, 0.1)], 1, PRIOR, 0.015)

    assert choose(belief, []) is None


@pytest.mark.parametrize(
    ("places", "share", "expected"),
    [((0.5, 0.3, 0.2), 0.5, (1,)), ((0.1, 0.6, 0.3), 0.85, (2, 3)), ((0.25, 0.25, 0.5), 0.95, (1, 2, 3)), ((1.0,), 0.95, (1,))],
)
def test_list_credible(places, share, expected):
    assert list_credible(places, share) == expected
