"""Designs by their price: what sessions took, how arms stand in a block, and the cheapest that finds a loss."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp, log1p, sqrt

import pytest

from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.scenario.catalog import load_scenario
from perfgate.stats.power import POWER, find_power
from perfgate.verdict.design import (
    choose_designs,
    describe_choices,
    describe_scatter,
    find_lag,
    measure_drift,
    measure_warmup,
    read_cost,
)
from perfgate.verdict.noise import Anchor, NoiseModel
from perfgate.verdict.power import BLOCK_CHOICES, Cost, SampleSize, Study
from tests.fakes.sessions import make_scenario, make_session
from tests.rule.test_power import make_baseline, make_noise, make_starts

COST = Cost(start_s=30.0, window_s=10.0, warmups=2)


def make_study(**given):
    scenario = load_scenario("cpu-moe")
    gates = {name: replace(gate, margin=0.03) for name, gate in scenario.gates.items()}
    return Study(baseline=make_baseline(**given), scenario=replace(scenario, gates=gates), cost=COST)


def test_read_cost__of_blocks_that_follow_another():
    scenario = make_scenario()
    session = make_session(scenario, blocks=3, is_aa=True)
    late = tuple(
        replace(one, begun_s=one.begun_s + 70.0 * one.block, ended_s=one.ended_s + 70.0 * one.block) for one in session.windows
    )

    cost = read_cost([replace(session, windows=late)])

    # Ten windows a block with a second after each; the stretch of 70 s before each block is what its servers took.
    assert cost.start_s == pytest.approx((70.0 + 10.0) / 2)
    assert cost.window_s == pytest.approx(late[2].ended_s - late[2].begun_s, rel=0.05)
    assert cost.warmups == 2


def test_read_cost__one_block_tells_no_start():
    with pytest.raises(InputError, match="--from: no session has a second block"):
        read_cost([make_session(make_scenario(), blocks=1)])


def test_measure_warmup__of_each_window_in_turn():
    session = make_session(make_scenario(), blocks=3, noise=0.0)
    slowed = tuple(
        replace(one, run=replace(one.run, values={**one.run.values, "median_itl_ms": 10.0 * (1.5, 1.1)[one.index]}))
        if one.index < 2
        else one
        for one in session.windows
    )

    assert measure_warmup([replace(session, windows=slowed)], "median_itl_ms") == pytest.approx((0.5, 0.1))


@pytest.mark.parametrize(("windows", "lag"), [(1, 1.0), (2, 0.0), (3, 1 / 3), (4, 0.0), (5, 0.2)])
def test_find_lag__of_arms_that_take_turns(windows, lag):
    turns = [("b", "c") if turn % 2 == 0 else ("c", "b") for turn in range(windows)]
    order = [arm for turn in turns for arm in turn]
    places = {arm: [place for place, found in enumerate(order) if found == arm] for arm in "bc"}

    assert find_lag(windows) == pytest.approx(lag)
    assert sum(places["c"]) / windows - sum(places["b"]) / windows == pytest.approx(lag)


def test_measure_drift__finds_what_a_place_adds_whatever_starts_differ_by():
    starts = make_starts(20)
    values = []
    for number, start in enumerate(starts):
        leads = (start.block % 2 == 1) == (start.arm is Arm.BASE)
        places = (0, 3, 4) if leads else (1, 2, 5)
        values.append(tuple(100 * exp(0.05 * (number % 7) + 0.004 * place) for place in places))
    noise = NoiseModel(
        metric="median_itl_ms", starts=starts, values=tuple(values), anchor=Anchor(log_mean=0, at="", release="")
    )

    slope, error = measure_drift(noise)

    assert slope == pytest.approx(0.004)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_measure_drift__of_noise_is_about_its_error():
    slope, error = measure_drift(make_noise("median_itl_ms", blocks=200))

    # 400 starts; the places of an arm lie 0, 3, 4 or 1, 2, 5, so 26/3 a start: 0.01 / sqrt(400 x 26/3)
    assert error == pytest.approx(0.01 / sqrt(400 * 26 / 3), rel=0.1)
    assert abs(slope) < 4 * error


@pytest.mark.parametrize(
    "noise", [make_noise("median_itl_ms", windows=1), make_noise("median_itl_ms", is_aa=False)], ids=["one window", "one arm"]
)
def test_measure_drift__nothing_to_tell_it_by(noise):
    assert measure_drift(noise) is None


def test_describe_scatter__offset_seen_and_offset_assumed():
    study = make_study()
    noise = study.baseline.metrics["median_itl_ms"]

    found = describe_scatter(study, "median_itl_ms")

    assert found.offset == pytest.approx(sqrt(noise.offset_variance))
    assert found.assumed == pytest.approx(sqrt((4 * 0.005**2 + 5 * noise.offset_variance) / 9))
    assert (found.window, found.start) == pytest.approx((0.01, 0.005), rel=0.5)


def test_choose_designs__each_is_the_cheapest_of_its_windows():
    study = make_study(window_sd=0.004, start_sd=0.001)
    choice = choose_designs(study, 0.03, "median_itl_ms")

    assert choice.best is not None
    assert choice.best.minutes == min(plan.minutes for plan in choice.plans if plan.minutes)
    for plan in choice.plans:
        if plan.size is None or plan.sessions > choice.present.sessions:
            continue
        assert find_power(study.trial("median_itl_ms", plan.size), log1p(0.03)) == pytest.approx(plan.power)
        assert plan.power >= POWER
        fewer = [blocks for blocks in BLOCK_CHOICES if blocks < plan.size.blocks]
        assert all(
            find_power(study.trial("median_itl_ms", replace(plan.size, blocks=blocks)), log1p(0.03)) < POWER for blocks in fewer
        )


def test_choose_designs__says_how_many_sessions_of_equal_arms_it_takes():
    few, many = (make_study(blocks=blocks, window_sd=0.002, start_sd=0.0005) for blocks in (4, 64))

    poor, rich = (choose_designs(study, 0.02, "median_itl_ms") for study in (few, many))

    assert rich.plans[0].sessions == rich.present.sessions == 16
    assert poor.plans[0].sessions > poor.present.sessions
    assert poor.best is not None


def test_choose_designs__none_for_a_loss_below_half_the_margin():
    choice = choose_designs(make_study(), 0.01, "median_itl_ms")

    assert choice.best is None
    assert all(plan.size is None for plan in choice.plans)
    assert choice.present.power < 0.5


def test_choose_designs__costs_no_less_for_a_smaller_loss():
    study = make_study(blocks=64, window_sd=0.004, start_sd=0.001)
    prices = [choose_designs(study, effect, "median_itl_ms").best.minutes for effect in (0.025, 0.03, 0.05)]

    assert all(smaller >= larger for smaller, larger in pairwise(prices))


def test_describe_choices__names_what_was_not_found():
    [described] = describe_choices([choose_designs(make_study(), 0.01, "median_itl_ms")])

    assert described["metric"] == "median_itl_ms"
    assert described["plans"][0] == {
        "windows": 1,
        "aa_sessions": 32,
        "blocks": None,
        "request_ratio": None,
        "minutes": None,
        "power": None,
    }
    assert described["present"]["minutes"] == pytest.approx(COST.minutes(SampleSize(blocks=6, windows=3)))
