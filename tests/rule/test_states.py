"""What blocks tell of the machine: a level that moved, two states, blocks that stored noise does not explain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfgate.check import judge
from perfgate.core import Arm
from perfgate.scenario.schema import Blocks, Gate
from perfgate.verdict.states import MAX_P_VALUE, compare_scatter, find_gap, find_shift
from tests.fakes.sessions import make_baseline, make_scenario, make_session

SCENARIO = make_scenario(blocks=Blocks(looks=(6,)))
BASELINE = make_baseline(SCENARIO)


def slow(session, chosen, factor):
    """The same session with the windows that `chosen` picks slower by `factor`."""
    windows = []
    for window in session.windows:
        if chosen(window):
            values = {
                name: value / factor if name == "output_tok_per_s" else value * factor
                for name, value in window.run.values.items()
            }
            run = replace(window.run, values=values, duration_s=window.run.duration_s * factor)
            windows.append(replace(window, run=run))
        else:
            windows.append(window)
    return replace(session, windows=tuple(windows))


def words(session, start, baseline=BASELINE):
    return [line for line in judge(session, SCENARIO, baseline).warnings if line.startswith(start)]


def test_find_shift__of_both_arms_together():
    base, candidate = (0.0, 0.001, -0.001, 0.05, 0.049, 0.051), (0.001, 0.0, 0.0, 0.05, 0.051, 0.05)

    shift = find_shift(base, candidate)

    assert shift.block == 4
    assert shift.size == pytest.approx(0.05, abs=0.001)
    assert shift.p_value < 1e-4


def test_find_shift__one_arm_alone_is_a_difference_and_no_shift():
    base, candidate = (0.0, 0.001, -0.001, 0.0, 0.001, -0.001), (0.0, 0.001, 0.0, 0.05, 0.049, 0.051)

    assert find_shift(base, candidate).p_value > 0.01


def test_find_shift__two_blocks_tell_none():
    assert find_shift((0.0, 0.1), (0.0, 0.1)) is None


def test_find_shift__where_nothing_scatters():
    assert find_shift((0.0, 0.0, 0.1), (0.0, 0.0, 0.1)).p_value == 0.0
    assert find_shift((0.1,) * 3, (0.1,) * 3).p_value == 1.0


def test_find_shift__seldom_in_chance():
    rng = np.random.default_rng(3)
    drawn = rng.normal(0, 0.01, (2000, 2, 6))
    alarms = sum(find_shift(*arms).p_value < MAX_P_VALUE for arms in drawn.tolist())

    assert alarms <= 2000 * 2 * MAX_P_VALUE


@pytest.mark.parametrize(("differences", "variance", "df"), [((0.1,), 0.01, 5), ((0.1, 0.2), 0.0, 5), ((0.1, 0.2), 0.01, 0)])
def test_compare_scatter__nothing_to_hold_against(differences, variance, df):
    assert compare_scatter(differences, variance, df) is None


def test_compare_scatter__ratio_of_standard_deviations():
    found = compare_scatter((-0.03, 0.0, 0.03), 0.01**2, 100)

    assert found.ratio == pytest.approx(3.0)
    assert found.p_value == pytest.approx(0.000253, abs=5e-5)


@pytest.mark.parametrize(
    ("levels", "gap"),
    [
        ((0.0, 0.001, 0.05, 0.051), 0.05),
        ((0.0, 0.02, 0.04, 0.06), None),
        ((0.0, 0.0, 0.0, 0.05), None),
        ((0.0, 0.05), None),
    ],
)
def test_find_gap__two_groups_or_none(levels, gap):
    assert find_gap(levels) == (None if gap is None else pytest.approx(gap))


def test_judge__names_a_level_shift_and_decides_all_the_same():
    quiet = make_session(SCENARIO, blocks=6, noise=0.001, worse={"output_tok_per_s": 0.0175})
    shifted = slow(quiet, lambda window: window.block > 2, 1.08)

    [line] = words(shifted, "level shift")

    assert line.startswith("level shift: from block 3 on, ")
    assert "of both arms is " in line
    assert judge(shifted, SCENARIO, BASELINE).outcome is judge(quiet, SCENARIO, BASELINE).outcome


def make_two_states():
    states = {(2, Arm.BASE), (3, Arm.CANDIDATE), (4, Arm.BASE), (6, Arm.CANDIDATE)}
    return slow(make_session(SCENARIO, blocks=6, noise=0.001), lambda window: (window.block, window.arm) in states, 1.05)


def test_judge__names_starts_in_two_states():
    [line] = words(make_two_states(), "restless starts")

    assert "; they stand in two states, 5." in line or "; they stand in two states, 4." in line


def test_judge__names_stored_noise_of_a_quieter_day():
    [line] = words(make_two_states(), "stored noise is of a quieter day")
    ratio = float(line.split(" times")[0].rsplit(" ", 1)[1])

    assert ratio > 5
    assert words(make_two_states(), "stored noise", baseline=None) == []


def test_judge__a_value_of_the_whole_start_has_no_windows_to_be_restless_against():
    """Each window of a start carries its time to ready; the mean of five equal logarithms is off by rounding."""
    scenario = make_scenario(blocks=Blocks(looks=(6,), windows=5), gates={**SCENARIO.gates, "ready_s": Gate()})
    quiet = make_session(scenario, blocks=6)
    windows = tuple(
        replace(one, run=replace(one.run, values={**one.run.values, "ready_s": 51.0 + 0.37 * one.start}))
        for one in quiet.windows
    )

    warnings = judge(replace(quiet, windows=windows), scenario, None).warnings

    assert not any("Time to ready" in line for line in warnings if line.startswith("restless starts"))


def test_judge__has_no_words_for_an_even_session():
    verdict = judge(make_session(SCENARIO, blocks=6), SCENARIO, BASELINE)

    assert not any(line.startswith(("level shift", "restless", "stored noise is")) for line in verdict.warnings)


def test_judge__a_candidate_alone_has_no_states():
    alone = make_session(SCENARIO, blocks=1, arms=(Arm.CANDIDATE,))

    assert words(alone, "level shift") == words(alone, "restless") == []
