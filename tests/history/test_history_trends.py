"""Changes of level, changes of the environment, runners against one another, and creep."""

import pytest

from perfgate.history.assembly import find_changes
from perfgate.history.trends import compare_runners, find_marks, measure_creep, measure_loss, tell_differences
from tests.fakes.history import FACTS, draw_levels, make_points


@pytest.mark.parametrize(("better", "is_worse"), [("higher", True), ("lower", False), ("", None)])
def test_find_changes__names_the_commits_around_a_drop(better, is_worse):
    points = make_points(draw_levels([1000, 970]))

    (change,) = find_changes(points, better)

    assert change.index == 20
    assert change.commits == (f"{19:07x}", f"{20:07x}")
    assert change.ratio == pytest.approx(-0.03, abs=0.005)
    assert change.is_worse is is_worse


def test_find_changes__finds_nothing_in_noise():
    assert sum(len(find_changes(make_points(draw_levels([1000], each=60, seed=seed)), "higher")) for seed in range(20)) <= 1


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [5.0] * 30, [0.0] * 30])
def test_find_changes__of_little_or_of_equal_numbers_is_none(values):
    assert find_changes(make_points(values), "higher") == ()


def test_find_changes__one_bad_session_is_no_new_level():
    values = draw_levels([1000], each=40)

    assert find_changes(make_points([*values, 700.0]), "higher") == ()
    assert len(find_changes(make_points([*values, *draw_levels([700], each=5)]), "higher")) == 1


def test_find_changes__says_when_the_commit_is_not_the_cause():
    commits = ["abcdef1"] * 40
    environments = [FACTS] * 20 + [FACTS | {"driver": "580"}] * 20

    (change,) = find_changes(make_points(draw_levels([1000, 950]), commit=commits, environment=environments), "higher")

    assert change.notes == ("the same commit on both sides: the code is not the cause", "driver 570 -> 580")


def test_find_changes__says_when_the_runner_changed():
    (change,) = find_changes(make_points(draw_levels([1000, 950]), runner=["a"] * 20 + [""] * 20), "higher")

    assert change.notes == ("runner a -> (unknown)",)


def test_find_marks__compares_a_runner_with_itself():
    other = FACTS | {"driver": "580"}
    points = make_points(
        [1.0] * 6, runner=["a", "b"] * 3, environment=[FACTS, other, FACTS, other, FACTS, other | {"torch": "3"}]
    )

    assert [(mark.index, mark.runner, mark.differences) for mark in find_marks(points)] == [(5, "b", ("torch 2.9 -> 3",))]


def test_tell_differences__an_engine_is_what_is_measured_and_the_unknown_is_no_change():
    assert tell_differences(FACTS, FACTS | {"sglang": "0.5.16"}) == ()
    assert tell_differences(FACTS, {}) == ()
    assert tell_differences({"driver": "1"}, {}) == ()


def test_compare_runners__compares_the_medians_of_runners():
    spread = compare_runners(make_points([100, 102, 100, 102, 100, 500], runner=["a", "b", "a", "b", "a", "c"]))

    assert spread.medians == {"a": 100, "b": 102}
    assert spread.points == {"a": 3, "b": 2}
    assert spread.ratio == pytest.approx(0.02)


@pytest.mark.parametrize("runners", [["a"] * 4, [""] * 4, ["a", "a", "a", "b"]])
def test_compare_runners__of_one_runner_is_unknown(runners):
    assert compare_runners(make_points([1, 2, 3, 4], runner=runners)) is None


def test_measure_creep__adds_up_what_no_step_shows():
    # Half a percent a commit: the limit of 3 % / 2 is passed long before 3 % are lost.
    values = [1000 * 0.995**step for step in range(20)]
    over = [
        count
        for count in range(6, 21)
        if measure_creep(make_points(values[:count], release=["v1", *[""] * (count - 1)]), "higher", 0.03).is_over
    ]

    assert 1 - values[over[0] - 1] / values[0] < 0.03
    assert over == list(range(over[0], 21))


def test_measure_creep__counts_from_the_newest_release():
    names = ["v1", "", "", "v2", "", ""]

    creep = measure_creep(make_points([100, 90, 90, 80, 80, 80], release=names), "higher", 0.03)

    assert (creep.anchor, creep.level, creep.ratio, creep.is_over) == ("v2", 80, 0.0, False)


def test_measure_creep__without_a_release_counts_from_the_first_points():
    points = make_points([100] * 5 + [110] * 5)

    assert measure_creep(points, "lower", 0.03).anchor == "first measured"
    assert measure_creep(points, "lower", 0.03).is_over
    assert not measure_creep(points, "higher", 0.03).is_over
    assert not measure_creep(points, "", 0.03).is_over
    assert not measure_creep(points, "lower", None).is_over


def test_measure_creep__is_unknown_while_nothing_came_later():
    assert measure_creep(make_points([100] * 5), "lower", 0.03) is None
    assert measure_creep(make_points([0] * 5 + [1]), "lower", 0.03) is None


def test_measure_loss__is_positive_for_a_loss():
    assert measure_loss(100, 80, "higher") == pytest.approx(0.25)
    assert measure_loss(100, 80, "lower") == pytest.approx(-0.2)
    assert measure_loss(0, 80, "lower") is None
