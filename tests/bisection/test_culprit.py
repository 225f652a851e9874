"""The search on plain numbers: each step, each ending, and what it goes around."""

from __future__ import annotations

from dataclasses import replace
from math import log1p

import numpy as np
import pytest

from perfgate.bisection.search import (
    GOOD,
    Answer,
    CommitReading,
    Ending,
    Measured,
    Search,
    SearchRules,
    Step,
    list_groups,
    plan_next,
)
from perfgate.stats.looks import LookPlan

RULES = SearchRules(plan=LookPlan(alpha=0.01, looks=(2, 3, 4, 6)), budget=1000.0)
LOSS = log1p(0.03)


def make(place, *differences, minutes=2.0, **changes):
    fields = {"margin_log": LOSS, "prior_variance": 0.004**2, "prior_df": 6.0}
    reading = CommitReading(differences=differences, **{**fields, **changes})
    return Measured(place=place, minutes=minutes * len(differences), metrics={"speed": reading})


def search(*measured, places=16, **changes):
    spent = sum(one.minutes for one in measured)
    fields = {"rules": RULES, "built": frozenset(range(places + 1)), "minutes": spent}
    return Search(**{**fields, "places": places, "measured": measured, **changes})


def play(places, culprit, *, loss=LOSS, noise=0.004, seed=1, skipped=(), **changes):
    """A whole search whose blocks are drawn; returns the answer and what was measured."""
    draw = np.random.default_rng(seed)
    state = search(places=places, skipped=dict.fromkeys(skipped, "no build"), **changes)
    while isinstance(step := plan_next(state), Step):
        assert step.place not in skipped
        assert len(state.measured) < 60
        level = loss if culprit is not None and step.place >= culprit else 0.0
        one = make(step.place, *(float(draw.normal(level, noise)) for _ in range(step.blocks)))
        state = replace(state, measured=(*state.measured, one), minutes=state.minutes + one.minutes)
    return step, state


def test_plan_next__first_compares_the_ends():
    step = plan_next(search())

    assert step == Step(place=16, blocks=2)


def test_plan_next__goes_on_to_the_next_look():
    step = plan_next(search(make(16, 0.03, 0.0)))

    assert step == Step(place=16, blocks=1)


def test_plan_next__then_halves():
    step = plan_next(search(make(16, 0.031, 0.029)))

    assert isinstance(step, Step)
    assert (step.place, step.blocks) == (8, 1)
    assert step.bits == pytest.approx(1.0, abs=0.05)


def test_plan_next__blocks_of_equal_arms_come_first_where_no_noise_is_known():
    rules = replace(RULES, aa_blocks=3)
    known = [make(GOOD, 0.001, prior_df=0), make(GOOD, -0.002, prior_df=0)]

    assert plan_next(search(*known, rules=rules)) == Step(place=GOOD, blocks=1)
    assert plan_next(search(*known, make(GOOD, 0.0, prior_df=0), rules=rules)) == Step(place=16, blocks=2)


def test_find_prior__is_that_of_the_equal_arms():
    prior = search(make(GOOD, 0.003, prior_df=0), make(GOOD, -0.004, prior_df=0)).find_prior("speed")

    assert (prior.df, prior.variance) == (2, pytest.approx(12.5e-6))


@pytest.mark.parametrize("culprit", [1, 2, 7, 15, 16])
def test_plan_next__finds_the_culprit_wherever_it_is(culprit):
    answer, state = play(16, culprit)

    assert (answer.ending, answer.found, answer.credible) == (Ending.FOUND, culprit, (culprit,))
    assert sum(one.blocks for one in state.measured) <= 12


def test_plan_next__a_range_of_one_needs_no_search():
    answer, state = play(1, 1)

    assert (answer.ending, answer.found) == (Ending.FOUND, 1)
    assert sum(one.blocks for one in state.measured) == 2


def test_plan_next__measures_again_where_noise_is_large():
    answer, state = play(16, 5, noise=0.015, seed=3)
    places = [one.place for one in state.measured]

    assert answer.found == 5
    assert len(places) > len(set(places))


def test_plan_next__equal_ends():
    answer, state = play(16, None)

    assert answer.ending is Ending.NO_DIFFERENCE
    assert "BAD is not slower by as much as the margin" in answer.reason
    assert {one.place for one in state.measured} == {16}


def test_plan_next__a_gain_that_is_not_proven_is_not_called_equal():
    answer = plan_next(search(make(16, -0.09, -0.01)))

    assert answer.reason == "BAD is not slower by as much as the margin: the gate's rule says PASS"


def test_plan_next__a_faster_end():
    answer = plan_next(search(make(16, -0.05, -0.05)))

    assert "BAD is faster than GOOD" in answer.reason


def test_plan_next__an_open_comparison_is_searched_on_and_said():
    state = search(make(16, 0.05, -0.01, 0.05, -0.01, 0.05, -0.01, prior_variance=0.02**2))
    step = plan_next(state)

    assert isinstance(step, Step)
    assert step.bits is not None
    answer = plan_next(replace(state, rules=replace(RULES, budget=state.minutes)))
    assert answer.ending is Ending.OUT_OF_BUDGET
    assert "after 6 blocks the gate's rule has not decided" in answer.warnings[0]


@pytest.mark.parametrize(("budget", "known"), [(3.0, 0), (4.5, 1), (9.0, 2)])
def test_plan_next__stays_within_its_budget(budget, known):
    rules = replace(RULES, budget=budget, block_minutes=2.0)
    answer, state = play(64, 20, rules=rules)

    assert answer.ending is Ending.OUT_OF_BUDGET
    assert state.minutes <= budget
    assert (len(state.measured) > 0) == (known > 0)
    assert (answer.belief is not None) == bool(answer.credible)


def test_plan_next__out_of_budget_names_who_is_left():
    state = search(make(16, 0.03, 0.03), make(8, 0.0), make(12, 0.03))
    answer = plan_next(replace(state, rules=replace(RULES, budget=state.minutes)))

    assert answer.credible == (9, 10, 11, 12)


def test_plan_next__goes_around_what_cannot_be_built():
    answer, state = play(16, 11, skipped=(7, 8, 9))

    assert answer.found == 11
    assert not {7, 8, 9} & {one.place for one in state.measured}


def test_plan_next__a_culprit_among_skipped_ones_is_narrowed_down():
    answer, _ = play(16, 8, skipped=(7, 8, 9))

    assert (answer.ending, answer.found, answer.credible) == (Ending.NARROWED, None, (7, 8, 9, 10))


def test_list_groups__are_those_between_which_nothing_can_be_measured():
    groups = list_groups(search(places=6, skipped={2: "no build", 3: "no build"}))

    assert groups == [(1,), (2, 3, 4), (5,), (6,)]


def test_plan_next__what_is_void_twice_is_gone_around():
    state = search(make(16, 0.03, 0.03), voids={8: ("stalled", "stalled")})
    step = plan_next(state)

    assert isinstance(step, Step)
    assert step.place in {7, 9}
    assert state.gone_around == {8: "no valid measurement: stalled"}


@pytest.mark.parametrize(("place", "name"), [(GOOD, "GOOD"), (16, "BAD")])
def test_plan_next__an_end_that_cannot_be_measured(place, name):
    answer = plan_next(search(skipped={place: "exit code 2"}))

    assert (answer.ending, answer.reason) == (Ending.UNMEASURABLE, f"{name} cannot be measured: exit code 2")


def test_plan_next__bad_that_only_seemed_slow():
    state = search(make(16, 0.03, 0.03, prior_variance=0.012**2), make(16, *[0.0] * 8, prior_variance=0.012**2))
    answer = plan_next(state)

    assert (answer.ending, answer.credible) == (Ending.NO_DIFFERENCE, ())


def test_plan_next__two_losses_are_told():
    state = search(make(16, 0.1, 0.1), make(8, 0.03), make(12, 0.03), make(4, 0.0), make(15, 0.1), make(14, 0.03))
    answer = plan_next(replace(state, rules=replace(RULES, budget=state.minutes)))

    assert isinstance(answer, Answer)
    assert "there may be several culprits" in answer.warnings[0]


def test_plan_next__searches_by_the_metric_that_stands_out():
    quiet, loud = (make(16, *pair).metrics["speed"] for pair in ((0.03, 0.03), (0.05, 0.09)))
    shown = replace(loud, differences=(0.5, 0.5), gating=False)
    ends = Measured(place=16, minutes=4.0, metrics={"loud": loud, "quiet": quiet, "shown": shown})
    state = search(ends, rules=replace(RULES, budget=4.0))

    assert plan_next(state).metric == "quiet"
    assert plan_next(replace(state, rules=replace(RULES, budget=4.0, metric="loud"))).metric == "loud"


def test_price__counts_a_build_where_one_is_missing():
    state = search(make(16, 0.03, 0.03), built=frozenset({16}), build_minutes=(5.0, 7.0))

    assert state.price(16, 3) == pytest.approx(6.0)
    assert state.price(8, 1) == pytest.approx(8.0)
