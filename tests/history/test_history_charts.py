"""The picture of a series: a sign for each session, a line for each level, and one for each moment that explains it."""

import re
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from perfgate.history.assembly import find_changes
from perfgate.history.charts import COLOURS, HEIGHT, TICK_WIDTH, WIDTHS, build_chart
from perfgate.history.dashboard import NEWS_SHOWN, render_dashboard
from perfgate.history.listing import describe_news, rank_series
from perfgate.history.trends import Creep, History, Ledger, LevelSeries, SeriesSubject, find_marks
from tests.fakes.history import BEGIN, FACTS, draw_levels, make_points

SUBJECT = SeriesSubject(
    scenario="nightly",
    hardware="a-gpu",
    workload="w",
    metric="output_tok_per_s",
    title="Output throughput",
    unit="tok/s",
    better="higher",
)


def make_series(values, **columns):
    points = tuple(make_points(values, **columns))
    changes = find_changes(points, "higher")
    return LevelSeries(
        subject=SUBJECT, points=points, changes=changes, marks=tuple(find_marks(points)), spread=None, creep=None
    )


def pick(chart, word, width=0):
    return [shape for shape in chart.drawings[width].shapes if word in shape.style.split()]


def test_build_chart__a_change_splits_the_level_and_stands_between_its_sessions():
    chart = build_chart(make_series(draw_levels([1000, 950])), [""])
    signs, levels, (change,) = pick(chart, "mark"), pick(chart, "level"), pick(chart, "rule")

    assert chart.title == "Output throughput, tok/s"
    assert chart.summary.endswith("1 change of level")
    assert len(signs) == 40
    assert [level.at["y1"] == level.at["y2"] for level in levels] == [True, True]
    # Upwards is less on a screen: the first level is the higher one.
    assert levels[0].at["y1"] < levels[1].at["y1"]
    assert change.style == "rule worse"
    assert signs[19].at["cx"] < change.at["x1"] < signs[20].at["cx"]
    assert "Output throughput -4.9 % (worse)" in change.hint


def test_build_chart__releases_and_environments_have_lines_of_their_own():
    environment = [FACTS] * 3 + [FACTS | {"driver": "580"}] * 3
    series = make_series([100.0] * 6, release=["", "v1", "v1", "", "v2", ""], environment=environment)

    chart = build_chart(series, sorted({point.runner for point in series.points}))

    assert [shape.hint for shape in pick(chart, "release")] == ["release v1", "release v2"]
    assert [shape.hint.rpartition(": ")[2] for shape in pick(chart, "environment")] == ["driver 570 -> 580"]


@pytest.mark.parametrize(
    ("days", "form"),
    [([0, 0.2, 0.4], r"\d\d-\d\d \d\d:\d\d"), ([0, 1, 2], r"\d\d-\d\d \d\d:\d\d"), ([0, 30, 400], r"\d{4}-\d\d-\d\d")],
)
def test_build_chart__the_axis_is_time_with_a_few_round_ticks(days, form):
    moments = [BEGIN + timedelta(days=day) for day in days]
    chart = build_chart(make_series([1000.0, 1001.0, 1002.0], at=moments), [""])
    ticks = [shape.text for shape in pick(chart, "tick") if re.fullmatch(form, shape.text)]
    places = [sign.at["cx"] for sign in pick(chart, "mark")]

    assert 2 <= len(ticks) <= 5
    assert (places[1] - places[0]) / (places[2] - places[0]) == pytest.approx(days[1] / days[2], abs=0.01)


def test_build_chart__a_runner_keeps_its_colour_and_further_ones_share_them():
    names = [f"runner-{number}" for number in range(COLOURS + 1)]

    chart = build_chart(make_series([100.0] * len(names), runner=names), names)

    styles = [shape.style for shape in pick(chart, "mark")]
    assert styles[0] == styles[-1] == "mark series-0 full"
    assert len(set(styles)) == COLOURS


@pytest.mark.parametrize("width", range(len(WIDTHS)))
@pytest.mark.parametrize("values", [[100.0], [0.0] * 3, [1e-12, 2e-12], [-5.0, 5.0], [1.0, 1e300], [1e300] * 2])
def test_build_chart__every_sign_and_label_is_within_the_picture(values, width):
    chart = build_chart(make_series(values), [""])

    for shape in pick(chart, "mark", width):
        assert 0 < shape.at["cx"] < WIDTHS[width]
        assert 0 < shape.at["cy"] < HEIGHT
    for shape in pick(chart, "tick", width):
        assert 0 <= shape.at["x"] <= WIDTHS[width]
        assert 0 <= shape.at["y"] <= HEIGHT


@pytest.mark.parametrize("width", range(len(WIDTHS)))
@pytest.mark.parametrize("count", [2, 30, 400, 1092])
def test_build_chart__times_beneath_do_not_touch(count, width):
    chart = build_chart(make_series([100.0] * count), [""])

    places = [shape.at["x"] for shape in pick(chart, "tick", width) if shape.at["text-anchor"] == "middle"]
    assert len(places) >= 2
    assert all(after - before >= TICK_WIDTH - 0.1 for before, after in pairwise(places))


def test_build_chart__a_few_days_stand_beneath_many_sessions():
    chart = build_chart(make_series([100.0] * 30), [""])

    days = [shape.text for shape in pick(chart, "tick") if shape.at["text-anchor"] == "middle"]
    assert 3 <= len(days) <= 5
    assert days == sorted(set(days))


def test_build_chart__a_gap_in_time_is_a_gap_in_the_picture():
    series = make_series([100.0] * 3)
    first, second, third = series.points
    late = replace(third, at=second.at + 9 * (second.at - first.at))

    signs = [shape.at["cx"] for shape in pick(build_chart(replace(series, points=(first, second, late)), [""]), "mark")]

    assert signs[2] - signs[1] == pytest.approx(9 * (signs[1] - signs[0]), rel=0.02)


def test_describe_news__what_moved_and_since_when():
    moved = make_series(draw_levels([1000, 950]))
    crept = replace(
        moved, creep=Creep(anchor="v1", at=BEGIN, level=1000.0, ratio=-0.05, worse=0.053, limit=0.015), changes=moved.changes
    )

    assert describe_news(moved) == "Output throughput -4.9 % (worse) since 2026-01-21: nightly on a-gpu"
    assert describe_news(crept) == (
        "Output throughput -5.0 % (worse) since v1, last change 2026-01-21, over its limit: nightly on a-gpu"
    )
    assert not describe_news(make_series(draw_levels([1000])))
    assert sorted([make_series(draw_levels([1000])), moved, crept], key=rank_series)[:2] == [crept, moved]


def make_history(series):
    ledger = Ledger(judged=0, regressions=0, equal_arms=0, alarms_of_equal_arms=0, overrides=())
    return History(store="a-store", series=tuple(series), ledger=ledger, spending=())


def make_named(name, levels, better="higher"):
    series = make_series(draw_levels(levels))
    changes = find_changes(series.points, better)
    return replace(series, subject=replace(SUBJECT, scenario=name, better=better), changes=changes)


def test_render_dashboard__begins_with_what_moved_and_which_way():
    page = render_dashboard(
        make_history(
            [
                make_named("calm", [1000]),
                make_named("better", [1000, 950], "lower"),
                make_named("other", [1000, 950], None),
                make_named("worse", [1000, 950]),
            ]
        )
    )

    assert "3 of 4 series moved (1 worse, 1 other, 1 better):" in page
    assert re.findall(r'<li class="(\w+)">Output throughput', page) == ["worse", "other", "better"]
    charts = re.findall(r"<h2>(\w+) on a-gpu", page)
    assert charts == ["worse", "other", "better", "calm"]
    # Each row of the overview leads to the chart of its own scenario.
    places = re.findall(r'<td[^>]*><a href="#series-(\d+)-0">', page)
    scenarios = re.findall(r'<td data-label="scenario" class="words">(\w+)</td>', page)
    assert [charts[int(place)] for place in places] == scenarios


def test_render_dashboard__folds_all_but_the_first_news():
    page = render_dashboard(make_history(make_named(f"scenario-{number}", [1000, 950]) for number in range(NEWS_SHOWN + 2)))

    assert f"{NEWS_SHOWN + 2} of {NEWS_SHOWN + 2} series moved ({NEWS_SHOWN + 2} worse):" in page
    assert "<summary>2 more that moved</summary>" in page


def test_render_dashboard__one_session_is_no_plural():
    page = render_dashboard(make_history([make_series([1000.0])]))

    assert "No level moved." in page
    assert "1 session, now" in page
    assert "<summary>One session, with" in page
