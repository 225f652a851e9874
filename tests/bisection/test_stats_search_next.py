"""Where to look next: what an answer tells, which measurement tells most a minute, and which places stay suspect."""

from __future__ import annotations

from math import inf, log, log2

import pytest

from perfgate.bisection.posterior import Look, Option, choose, list_credible, measure_information, weigh
from perfgate.stats.moderated import Prior

PRIOR = Prior(variance=0.01**2, df=4)


def look(place, *differences):
    return Look(place=place, differences=differences)


def test_measure_information__of_what_is_certain():
    assert measure_information([0.0, 1.0], 3.0) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("separation", [0.0, 1.0, 1e9])
@pytest.mark.filterwarnings("error")
def test_measure_information__of_what_is_certain_at_any_separation(separation):
    assert measure_information((0.0, 1.0), separation).tolist() == [0.0, 0.0]


def test_measure_information__of_shares_beyond_nothing_and_everything():
    assert measure_information([-0.1, 1.1], 3.0) == pytest.approx([0.0, 0.0])


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


@pytest.mark.parametrize("turn", [1, -1])
def test_choose__what_is_built_already_may_be_off_the_middle(turn):
    belief = weigh([look(8, 0.1, 0.1)], 8, PRIOR, 0.015)
    found = choose(belief, [Option(place=4, blocks=1, minutes=10.0), Option(place=3, blocks=1, minutes=2.0)][::turn])

    assert found is not None
    assert found[0].place == 3


def test_choose__more_blocks_where_one_tells_little_and_the_build_is_dear():
    belief = weigh([look(8, 0.03, 0.03)], 8, Prior(variance=0.03**2, df=9), 0.015)
    found = choose(belief, [Option(place=4, blocks=blocks, minutes=30.0 + blocks) for blocks in (1, 2, 3)])

    assert found is not None
    assert found[0].blocks == 3


def test_choose__of_equals_takes_the_first():
    belief = weigh([look(8, 0.1, 0.1)], 8, PRIOR, 0.015)
    found = choose(belief, [Option(place=4, blocks=1, minutes=0.0), Option(place=4, blocks=1, minutes=1e-10)])

    assert found is not None
    assert found[0].minutes == 0.0


def test_choose__nothing_is_left_to_ask():
    belief = weigh([look(1, 0.1, 0.1, 0.1, 0.1)], 1, PRIOR, 0.015)

    assert choose(belief, []) is None


@pytest.mark.parametrize(
    ("places", "share", "expected"),
    [
        ((0.5, 0.3, 0.2), 0.5, (1,)),
        ((0.1, 0.6, 0.3), 0.85, (2, 3)),
        ((0.25, 0.25, 0.5), 0.95, (1, 2, 3)),
        ((1.0,), 0.95, (1,)),
        ((0.25, 0.15, 0.1), 0.5, (1,)),
    ],
)
def test_list_credible(places, share, expected):
    assert list_credible(places, share) == expected
