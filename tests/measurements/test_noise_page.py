"""What recorded sessions say of noise: segments of a window, what an offset goes with, and the page that tells it."""

from __future__ import annotations

import re
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.error_rates.recordings import read_list, read_recordings
from benchmarks.noise.cards import find_level, find_pairs, measure, root_mean_square
from benchmarks.noise.estimators import ESTIMATORS, TODAY, Found, judge
from benchmarks.noise.page import PAGE, RESULTS, write_page
from benchmarks.noise.segments import list_steps, measure_segments, place_requests
from benchmarks.noise.slots import (
    LIST,
    SHOWN,
    STEP,
    Offset,
    bound_offset,
    count_flips,
    find_farthest,
    find_q,
    measure_offset,
    name_card,
    pool_leader,
)
from benchmarks.verdict.record import read_results
from perfgate.core import Arm
from perfgate.verdict.validity.pairing import Block


def make_fields(gap_s, *, requests=4, gaps=160, concurrency=2):
    return {"ttfts": [0.1] * requests, "itls": [[gap_s] * gaps] * requests, "max_concurrency": concurrency}


def test_place_requests__the_next_begins_where_a_place_is_free():
    assert place_requests([0.1, 0.1, 0.2], [[0.4], [0.9], [0.5]], 2) == pytest.approx([0.0, 0.0, 0.5])


def test_list_steps__means_of_steps_in_the_middle_of_their_time():
    sizes, middles = list_steps(make_fields(0.01, requests=1, gaps=16, concurrency=1), 8)

    assert sizes == pytest.approx([10.0, 10.0])
    assert middles == pytest.approx([0.1 + 0.04, 0.1 + 0.12])


def test_measure_segments__one_a_second():
    # Two waves of 0.1 + 160 x 0.01 s: 3.4 s
    segments = measure_segments(make_fields(0.01))

    assert len(segments) == 3
    assert segments == pytest.approx([10.0] * 3)


def make_found(name, values, *, is_equal=True, is_seen=False):
    differences = dict.fromkeys(ESTIMATORS, tuple(values[1])) | {TODAY: tuple(values[0])}
    return Found(name=name, load="l", is_equal=is_equal, is_seen=is_seen, differences=differences)


@pytest.mark.parametrize(
    ("blocks", "factor", "answer", "wins"),
    [(6, 0.5, 1.0, True), (5, 0.5, 1.0, False), (6, 0.9, 1.0, False), (6, 0.5, 0.7, False)],
)
def test_judge__by_scatter_answer_and_number(blocks, factor, answer, wins):
    today = [0.01 * (-1) ** block for block in range(blocks)]
    sessions = [
        make_found("equal", (today, [factor * value for value in today])),
        make_found("slowed", ([0.05], [answer * 0.05]), is_equal=False),
        make_found("before", ([1.0] * 9, [0.0] * 9), is_seen=True),
    ]
    rows = list(judge(sessions))

    assert {row["wins"] for row in rows if row["estimator"] != TODAY} == {wins}
    assert [row["wins"] for row in rows if row["estimator"] == TODAY] == [False]


def make_windows(values):
    return tuple(SimpleNamespace(run=SimpleNamespace(values={"median_itl_ms": value})) for value in values)


def make_block(base, candidate):
    return Block(number=1, base=make_windows(base), candidate=make_windows(candidate))


def test_measure_offset__mean_error_and_leader():
    scatter = (np.exp(-0.01), 1.0, np.exp(0.01))
    faster = tuple(0.98 * value for value in scatter)
    offset = measure_offset([make_block(scatter, faster), make_block(scatter, scatter)], "median_itl_ms")

    assert offset.differences == pytest.approx((np.log(0.98), 0.0))
    assert offset.error == pytest.approx(sqrt(2 * 0.01**2 / 3 / 2))
    assert offset.leader == pytest.approx(np.log(0.98) / 2)
    assert offset.leader_error == pytest.approx(offset.error)


def test_bound_offset__between_chance_and_the_offset_that_was_drawn():
    rng = np.random.default_rng(2)
    means = rng.normal(0, sqrt(0.01**2 + 0.002**2), 200)
    offsets = [Offset(differences=(mean, mean), error=0.002, leader=None) for mean in means]

    low, high = bound_offset(offsets, 0.05), bound_offset(offsets, 0.95)

    assert low < 0.01 < high or high < 0.01 < low
    assert bound_offset([Offset(differences=(0.0, 0.0), error=0.002, leader=None)] * 5, 0.95) == 0.0
    assert find_q(offsets) > len(offsets)


def test_find_farthest__of_several_blocks_by_what_it_adds():
    rows = [
        {"session": name, "offsets": {"median_itl_ms": Offset(differences=differences, error=0.01, leader=None)}}
        for name, differences in (("single", (0.09,)), ("two", (0.05, 0.05)), ("four", (0.04, 0.04, 0.04, 0.04)))
    ]

    assert find_farthest(rows, "median_itl_ms")["session"] == "four"


def test_name_card():
    assert name_card("nvidia-h200-141gb") == "H200"


def test_find_pairs__sessions_of_one_work_at_the_same_time():
    names = [f"mxfp4-mixed-c16-graphs-aa-{number}" for number in (1, 2, 3, 6)]
    found, _ = read_recordings(tuple(entry for entry in read_list(LIST) if entry.folder.name in names))
    pairs = list(find_pairs(found))
    apart, together = measure(pairs, STEP)
    levels = [find_level(one, Arm.BASE, STEP) for one in found]

    assert [(one.name, other.name) for one, other in pairs] == [(names[0], names[1]), (names[1], names[2])]
    assert apart == pytest.approx([levels[1] - levels[0], levels[2] - levels[1]])
    assert together == pytest.approx(
        [find_level(one, Arm.CANDIDATE, STEP) - find_level(one, Arm.BASE, STEP) for one in found[:3]]
    )
    assert root_mean_square([0.03, -0.04, 0.0, 0.0]) == pytest.approx(0.025)


def test_pool_leader__weighs_by_error():
    sure, unsure = (
        Offset(differences=(value, -value), error=error, leader=value) for value, error in ((0.01, 0.001), (0.1, 0.1))
    )

    leader, error = pool_leader([sure, unsure])

    assert leader == pytest.approx(0.01, rel=0.01)
    assert error == pytest.approx(sure.leader_error, rel=0.01)


def test_count_flips__tells_blocks_that_agree_from_chance():
    rng = np.random.default_rng(4)
    agreeing = [(0.01, 0.012, 0.009, 0.011)] * 3
    chance = rng.normal(0, 0.01, (10, 4)).tolist()

    assert count_flips(agreeing, np.random.default_rng(1)) < 0.01
    assert count_flips(chance, np.random.default_rng(1)) > 0.02


@pytest.mark.parametrize("name", RESULTS)
def test_results__count_a_session_once(name):
    sessions = [(row.get("gpu"), row["session"]) for row in read_results(name)["sessions"]]

    assert len(sessions) == len(set(sessions)) > 5


def test_write_page__is_what_the_results_say():
    found = {name: read_results(name) for name in RESULTS}

    assert PAGE.read_text(encoding="utf-8") == write_page(found), "run `python -m benchmarks.noise.page`"


def test_statistics_page__says_what_the_results_and_the_simulation_say():
    said = " ".join((PAGE.parents[1] / "explanation/statistics.md").read_text(encoding="utf-8").split())
    rows = {(row["group"], row["metric"]): row for row in read_results("slots")["groups"]}
    [without] = {name for name, _ in rows if name.startswith("all but ")}
    rate, step = ({group: rows[group, metric] for group in ("all", without, "mixed-c16")} for metric in SHOWN)
    simulated = (PAGE.parent / "error-rates-simulated.md").read_text(encoding="utf-8")
    bounds = [float(one) for one in re.findall(r"^\|[^|]+\| yes \|[^|]*\(≤ ([\d.]+) %\)", simulated, flags=re.MULTILINE)]

    def tell(one, name):
        return f"{100 * one[name]:.2f}"

    def tell_both(group, name):
        return f"{tell(rate[group], name)} and {tell(step[group], name)} %"

    assert f"Over [{rate['all']['sessions']} recorded sessions]" in said
    assert f"of {tell(rate['all'], 'offset')} % in throughput and {tell(step['all'], 'offset')} % in median ITL" in said
    assert f"at most {tell_both('all', 'offset_most')} (95 %)" in said
    assert f"without it {tell(step[without], 'offset')} %, at most {tell(step[without], 'offset_most')} %" in said
    assert f"Over the {rate['mixed-c16']['sessions']} sessions of mixed-c16" in said
    assert f"{tell_both('mixed-c16', 'offset')}, at most {tell_both('mixed-c16', 'offset_most')}" in said
    assert f"for {sum(one <= 1 for one in bounds)} of {len(bounds)} kinds of noise" in said
    assert f"it is {max(bounds):.2f} %" in said
